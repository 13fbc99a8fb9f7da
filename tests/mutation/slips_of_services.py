"""Slips where partitions are served: what shares a flush, what waits, what is taken in and given up."""

from __future__ import annotations

from tests.mutation.trial import Slip

_APPEND_RUNS = "engine/node/append_runs.py"
_COMMIT = "engine/node/commit.py"
_COMMIT_PASSES = "engine/node/commit_passes.py"
_DATA_PORT = "engine/node/data_port.py"
_NODE_METRICS = "engine/node/node_metrics.py"
_METRICS = "engine/net/metrics.py"
_PARTITION_SERVICE = "engine/node/partition_service.py"
_HOSTED_STORAGE = "engine/node/hosted_storage.py"
_PARTITION_REQUESTS = "engine/node/partition_requests.py"
_OF_COMMIT = ("tests/node/test_commit.py",)
_OF_PASSES = ("tests/node/test_commit_passes.py",)
_OF_SERVICES_IN_PASSES = ("tests/node/test_service_in_passes.py",)
_OF_CONNECTIONS = ("tests/node/test_data_connection.py",)
_OF_NODE_METRICS = ("tests/node/test_metrics.py",)
_OF_VALUES = ("tests/net/test_values.py",)
_OF_PARTITION_SERVICE = ("tests/node/test_partition_service.py",)
_OF_HOSTING = ("tests/node/test_hosting.py",)

SERVICES: tuple[Slip, ...] = (
    Slip(
        _COMMIT,
        "                    chunk.stretches.append((row, row + encoded.frames, denial))\n"
        "                    row += encoded.frames\n"
        "                    continue",
        "                    chunk.stretches.append((row, stop, denial))\n"
        "                    row = stop\n"
        "                    continue",
        _OF_COMMIT,
        "a frame that cannot be decoded is answered as if the disk had failed",
    ),
    Slip(
        _COMMIT,
        "return any(broken is sender for broken in self.broken)",
        "return sender in self.broken[:1]",
        _OF_COMMIT,
        "what a second peer sent behind a broken frame is executed",
    ),
    Slip(
        _APPEND_RUNS,
        'np.searchsorted(ends, before + limit, side="right")',
        'np.searchsorted(ends, limit, side="right")',
        _OF_COMMIT,
        "each frame of a long run costs a flush",
    ),
    Slip(
        _COMMIT_PASSES,
        "            except (KeyboardInterrupt, SystemExit) as exit_:\n                leave = exit_\n        for",
        "            except (KeyboardInterrupt, SystemExit) as exit_:\n"
        "                leave = exit_\n"
        "                break\n"
        "        for",
        _OF_PASSES,
        "an exit in one partition leaves the others locked and unanswered",
    ),
    Slip(
        _PARTITION_SERVICE,
        "                if self._scheduled:\n"
        "                    return Admission.ACCEPTED\n"
        "                self._progress = time.monotonic()\n",
        "                self._progress = time.monotonic()\n"
        "                if self._scheduled:\n"
        "                    return Admission.ACCEPTED\n",
        _OF_PARTITION_SERVICE,
        "a partition whose disk hangs counts as one that moves as long as requests come",
    ),
    Slip(
        _PARTITION_SERVICE,
        "if self._scheduled or self._held or self._closing_denial is not None:",
        "if self._scheduled or self._held:",
        ("tests/node/test_answer_now.py",),
        "a partition that was given up goes on answering reads",
    ),
    Slip(
        _PARTITION_SERVICE,
        "            self._waiting -= self._under_way\n            self._waiting_bytes -= size\n",
        "            self._waiting -= self._under_way\n",
        _OF_SERVICES_IN_PASSES,
        "a queue becomes full for ever",
    ),
    Slip(
        _PARTITION_SERVICE,
        "        if not self._queue:\n            self.commit.broken.clear()\n        self._idle",
        "        self.commit.broken.clear()\n        self._idle",
        _OF_PARTITION_SERVICE,
        "what came behind a broken frame is executed when the partition goes on",
    ),
    Slip(
        _PARTITION_SERVICE,
        "self._under_way, self._waiting, self._waiting_bytes = self._waiting, 0, 0",
        "self._under_way, self._waiting = self._waiting, 0",
        _OF_PARTITION_SERVICE,
        "a queue becomes full for ever",
    ),
    Slip(
        _PARTITION_SERVICE,
        "        with self._lock:\n            self._closing_denial = denial\n            done =",
        "        with self._lock:\n            done =",
        _OF_PARTITION_SERVICE,
        "a partition that is drained goes on taking requests",
    ),
    Slip(
        _HOSTED_STORAGE,
        "                if number in self.storage.partitions:\n"
        "                    service.resume()\n"
        "                else:\n"
        "                    self._forget(service)",
        "                service.resume()",
        _OF_HOSTING,
        "a partition that is gone is served from closed files",
    ),
    Slip(
        _HOSTED_STORAGE,
        "            finally:\n                service.resume(self.storage.partitions[partition])",
        "            except BaseException:\n"
        "                raise\n"
        "            service.resume(self.storage.partitions[partition])",
        _OF_HOSTING,
        "a partition that could not be opened again answers nobody",
    ),
    Slip(
        _HOSTED_STORAGE,
        "        self._metrics.forget(service.number)\n\n    def set_availability",
        "\n    def set_availability",
        _OF_HOSTING,
        "a partition that is gone is shown for ever",
    ),
    Slip(
        _HOSTED_STORAGE,
        "                service.refuse(closed())\n",
        "                pass\n",
        _OF_HOSTING,
        "a node that stops takes requests while it waits for a slow partition",
    ),
    Slip(
        _HOSTED_STORAGE,
        "                    late.append(service.number)\n            if late:",
        "                    late.append(service.number)\n                    break\n            if late:",
        _OF_HOSTING,
        "one partition that hangs leaves those behind it without an answer",
    ),
    Slip(
        _HOSTED_STORAGE,
        "left = None if deadline is None else max(deadline - time.monotonic(), 0.0)",
        "left = seconds",
        _OF_HOSTING,
        "a stop takes as many times its time as there are partitions",
    ),
    Slip(
        _DATA_PORT,
        "        if not self._reserved:  # a reserved big frame is checked against the limits of its reservation\n    ",
        "",
        ("tests/node/test_connection.py",),
        "a lower bound ends a connection in the middle of a frame that was let in",
    ),
    Slip(
        _DATA_PORT,
        "self.budget.capacity, self.reads.capacity = self.limits.memory, self.limits.reads",
        "self.budget.capacity = self.limits.memory",
        _OF_HOSTING,
        "a bound on reads that was reloaded does not hold",
    ),
    Slip(
        _PARTITION_REQUESTS,
        "    if isinstance(message, LastSessionInfoRequest) and not message.offline:",
        "    if isinstance(message, LastSessionInfoRequest):",
        ("tests/node/test_permissions.py",),
        "offline recovery is refused its first question",
    ),
    Slip(
        _PARTITION_REQUESTS,
        "    getattr(metrics, counter).increment()\n    return do",
        "    return do",
        ("tests/node/test_service.py",),
        "requests are not counted",
    ),
    Slip(
        _COMMIT_PASSES,
        "if self._idle_passes and under_way > _OVERLAP_AFTER:",
        "if self._idle_passes and under_way < _OVERLAP_AFTER:",
        _OF_PASSES,
        "while a disk takes its time nothing else is committed",
    ),
    Slip(
        _COMMIT_PASSES,
        "now - max(self._started_at.values()) if self._started_at else math.inf",
        "now - min(self._started_at.values()) if self._started_at else math.inf",
        _OF_PASSES,
        "one disk that hangs leaves everybody to threads and flushes of their own",
    ),
    Slip(
        _COMMIT_PASSES,
        "if not self._idle_passes and under_way > _SLOW_DISK_AFTER:",
        "if not self._idle_passes and under_way > _OVERLAP_AFTER:",
        _OF_PASSES,
        "on a disk of an ordinary speed nobody shares a flush",
    ),
    Slip(
        _COMMIT_PASSES,
        "            self._started_at[chosen] = now\n            return [chosen]",
        "            return [chosen]",
        _OF_PASSES,
        "two passes are begun for what one would have shared",
    ),
    Slip(
        _COMMIT_PASSES,
        "            alone: list[Job] = [*self._queue]\n            self._queue = []\n",
        "            alone: list[Job] = [*self._queue]\n",
        _OF_PASSES,
        "a partition is executed by a thread and by a pass at the same time",
    ),
    Slip(
        _COMMIT_PASSES,
        "        self._start(jobs)\n        if look:\n            self._schedule_check()\n\n    def _due_jobs",
        "        self._start(jobs)\n\n    def _due_jobs",
        _OF_PASSES,
        "the last one that came before all others fell silent waits behind a disk that hangs",
    ),
    Slip(
        _COMMIT_PASSES,
        "            self._check_scheduled = look = bool(self._queue) and not jobs\n",
        "            look = bool(self._queue) and not jobs\n",
        _OF_PASSES,
        "after the first look nobody looks again",
    ),
    Slip(
        _COMMIT_PASSES,
        "            jobs = self._due_jobs() if self._queue else []\n",
        "            jobs = self._due_jobs()\n",
        _OF_PASSES,
        "passes begin for nobody",
    ),
    Slip(
        _COMMIT_PASSES,
        "            self._check_scheduled = False  # the next `schedule` tries again\n",
        "            pass\n",
        _OF_PASSES,
        "a system that once had no thread leaves the last one waiting behind a disk that hangs",
    ),
    Slip(
        _COMMIT_PASSES,
        "                del self._started_at[by]\n                self._idle_passes.append(by)\n",
        "                self._idle_passes.append(by)\n",
        _OF_PASSES,
        "who comes right behind a pass waits for a look at it",
    ),
    Slip(
        _DATA_PORT,
        "            PartitionService.start_together(in_pass)\n            if row",
        "            if row",
        _OF_CONNECTIONS,
        "appends of several partitions that come together are never executed",
    ),
    Slip(
        _DATA_PORT,
        "        finally:\n            PartitionService.start_together(in_pass)\n",
        "            PartitionService.start_together(in_pass)\n        finally:\n",
        _OF_CONNECTIONS,
        "one partition that fails leaves those in front of it without an answer for ever",
    ),
    Slip(
        _DATA_PORT,
        "                self.done(len(table) - row, sum(lengths[row:]))",
        "                pass",
        _OF_CONNECTIONS,
        "memory of the port is lost whenever there is none, until it takes no requests at all",
    ),
    Slip(
        _APPEND_RUNS,
        "    table[0, BODY] = HEADER\n",
        "",
        _OF_CONNECTIONS,
        "an append that came with those of others is read where there is nothing",
    ),
    Slip(
        _DATA_PORT,
        "            self._open(message)\n            self.done(1, size)\n",
        "            self._open(message)\n",
        _OF_CONNECTIONS,
        "every peer that opens its connection keeps memory of the port",
    ),
    Slip(
        _PARTITION_SERVICE,
        "elif together is not None and self._passes is not None and self._fits_pass(item):",
        "elif together is not None and self._passes is not None:",
        _OF_SERVICES_IN_PASSES,
        "a long append, or a read, waits until its whole block is handed over",
    ),
    Slip(
        _PARTITION_SERVICE,
        "            (only,) = services\n            only.go_on()\n",
        "            pass\n",
        _OF_SERVICES_IN_PASSES,
        "an append that is the only one of its block is never executed",
    ),
    *(
        Slip(
            _NODE_METRICS,
            f"        self._add_buffered()\n        return self.{attribute}",
            f"        return self.{attribute}",
            _OF_NODE_METRICS,
            "a node that has little to do shows commits of an hour ago, or none",
        )
        for attribute in ("_append\n", "_append_latency", "_flush_latency", "_flush_requests")
    ),
    Slip(
        _NODE_METRICS,
        "            del self._buffered[: len(buffered)]\n",
        "            self._buffered.clear()\n",
        _OF_NODE_METRICS,
        "commits are not counted",
    ),
    Slip(
        _NODE_METRICS,
        "        with self._lock:  # a reader waits until another thread has added the buffer\n",
        "        if self._buffered:\n",
        _OF_NODE_METRICS,
        "who was answered does not find its commit in the metrics",
    ),
    Slip(
        _METRICS,
        "                if times[start] - self._last_tick >= TICK_SECONDS:\n"
        "                    self._tick(float(times[start]))\n",
        "",
        _OF_VALUES,
        "rates of appends are those of another time",
    ),
    Slip(
        _METRICS,
        "stop = max(start + 1, int(np.searchsorted(times, self._last_tick + TICK_SECONDS)))",
        "stop = len(times)",
        _OF_VALUES,
        "rates of appends are those of another time",
    ),
    Slip(
        _METRICS,
        "        kept = (values >= 0) & (counts > 0)\n",
        "        kept = counts > 0\n",
        _OF_VALUES,
        "a clock that was set back makes a latency of less than nothing",
    ),
    Slip(
        "engine/net/executor.py",
        "        if not self._closing:\n            call()",
        "        call()",
        ("tests/net/test_waiting.py",),
        "partitions are given to a pool that has ended",
    ),
    Slip(
        _DATA_PORT,
        "                if row[PARTITION] not in others:\n                    lists.setdefault(",
        "                if True:\n                    lists.setdefault(",
        _OF_CONNECTIONS,
        "a list is read before the append that came in front of it",
    ),
    Slip(
        _DATA_PORT,
        "if service is None or partition in self._waiting:",
        "if service is None:",
        _OF_CONNECTIONS,
        "a list overtakes what waits for room in its partition",
    ),
    Slip(
        _DATA_PORT,
        "while answered < len(table) and (self._pauses is Pause.NOTHING or not self._pauses & Pause.UNREAD_ANSWERS):",
        "while answered < len(table):",
        _OF_CONNECTIONS,
        "a peer that asks for lists and takes none fills the node's memory",
    ),
    Slip(
        _DATA_PORT,
        "            self.share.make(promised, len(frames))\n            if not count:",
        "            if not count:",
        _OF_CONNECTIONS,
        "each list that is left to a worker keeps memory for answers, until there is none for anybody",
    ),
    Slip(
        _DATA_PORT,
        "            else:  # the message may be malformed, which ends the connection\n                return table\n",
        "",
        _OF_CONNECTIONS,
        "a peer that sent nonsense is answered to what it sent behind it",
    ),
    Slip(
        "engine/scan/list_answers.py",
        "self._words[OpenWord.FLAGS], self._words[OpenWord.FEW] = NO_WAIT, FEW_RECORDS",
        "self._words[OpenWord.FEW] = FEW_RECORDS",
        ("tests/scan/test_list_answers.py::test_reads_are_asked_not_to_wait",),
        "one slow disk stops every connection of the node",
    ),
    Slip(
        "engine/scan/list_answers.py",
        "words[OpenWord.ROOM] = min(requests.room, ROOM)",
        "words[OpenWord.ROOM] = requests.room",
        ("tests/scan/test_list_answers.py::test_the_buffer_s_room_is_the_most_whatever_is_promised",),
        "answers are written behind the buffer that they are made in",
    ),
    Slip(
        "engine/scan/list_loops.py",
        "if length < count * DISK_OVERHEAD or length > get(segment, OPEN_MOST):",
        "if length < count * DISK_OVERHEAD:",
        ("tests/scan/test_list_answers.py::test_a_list_has_so_many_bytes_at_most",),
        "what a peer asks for is read behind the buffer that is there for it",
    ),
    Slip(
        "engine/scan/list_loops.py",
        "to_list(state, scratch, out, brief) != FINE or get(state, POSITION) != data_at + length:",
        "to_list(state, scratch, out, brief) != FINE:",
        ("tests/scan/test_list_answers.py", "tests/scan/test_wire_code.py"),
        "an index that leads too far is believed, and nobody looks at it",
    ),
    Slip(
        "engine/scan/list_loops.py",
        "if count <= 0 or count > following - first:",
        "if count > following - first:",
        ("tests/scan/test_list_answers.py::test_a_list_begins_with_a_record_that_is_there_and_shown",),
        "a list that begins behind what may be seen is answered as if it had been read",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "sum(member not in self._in_pass for member in self._last_arrival)",
        "len(self._last_arrival)",
        ("tests/node/test_commit_passes.py::test_those_in_another_pass_are_not_waited_for",),
        "every pass waits for partitions that cannot come, and does it in vain",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "            self._in_pass.difference_update(by.members)\n",
        "",
        ("tests/node/test_commit_passes.py",),
        "nobody is waited for a second time",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "if self._queue and not self._awaited_length:",
        "if self._queue:",
        ("tests/node/test_commit_passes.py::test_a_line_for_which_a_pass_waits_is_that_pass_s",),
        "of two passes one takes the line for which the other one waits, which then waits for nobody",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "if self._futile_waits >= IN_VAIN and (self._futile_waits - IN_VAIN + 1) % RETRIED:",
        "if False:",
        ("tests/node/test_commit_passes.py::test_where_nobody_comes_it_is_tried_more_seldom",),
        "partitions that come by themselves are each answered a third of a millisecond later",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "                self._arrival.notify()\n",
        "                pass\n",
        ("tests/node/test_commit_passes.py::test_a_wait_ends_when_all_are_there_or_its_time_is_over",),
        "a pass waits to the end of its time though all are there",
    ),
)
