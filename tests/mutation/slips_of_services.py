"""Slips where partitions are served: what shares a flush, what waits, what is taken in and given up."""

from __future__ import annotations

from tests.mutation.trial import Slip

_COMMIT = "engine/node/commit.py"
_PARTITION_SERVICE = "engine/node/partition_service.py"
_HOSTED_STORAGE = "engine/node/hosted_storage.py"
_PARTITION_REQUESTS = "engine/node/partition_requests.py"
_OF_COMMIT = ("tests/node/test_commit.py",)
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
        _COMMIT,
        'np.searchsorted(ends, before + limit, side="right")',
        'np.searchsorted(ends, limit, side="right")',
        _OF_COMMIT,
        "each frame of a long run costs a flush",
    ),
    Slip(
        "engine/node/commit_passes.py",
        "            except (KeyboardInterrupt, SystemExit) as exit_:\n                leave = exit_\n        for",
        "            except (KeyboardInterrupt, SystemExit) as exit_:\n"
        "                leave = exit_\n"
        "                break\n"
        "        for",
        ("tests/node/test_commit_passes.py",),
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
        "if self._scheduled or self._held or self._over is not None:",
        "if self._scheduled or self._held:",
        ("tests/node/test_answer_now.py",),
        "a partition that was given up goes on answering reads",
    ),
    Slip(
        _PARTITION_SERVICE,
        "            self._waiting -= self._under_way\n            self._waiting_bytes -= size\n",
        "            self._waiting -= self._under_way\n",
        ("tests/node/test_service_in_passes.py",),
        "a queue becomes full for ever",
    ),
    Slip(
        _PARTITION_SERVICE,
        "        if not self._queue:\n            self._commit.broken.clear()\n        self._idle",
        "        self._commit.broken.clear()\n        self._idle",
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
        "        with self._lock:\n            self._over = over\n            done =",
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
        "        self._metrics.forget(service.number)\n\n    def _left",
        "\n    def _left",
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
        "engine/node/data_port.py",
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
)
