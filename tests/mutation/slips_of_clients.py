"""Slips in what applications build on: a client's appends and feeds, and a feed applied to a database exactly once."""

from __future__ import annotations

from tests.mutation.trial import Slip

_APPLIER = ("tests/client/test_sql_applier.py",)
_FILE = "engine/client/sql_applier.py"
_MOUNTED = ("tests/client/test_partition_mount.py",)
_MOUNT = "engine/client/partition_mount.py"
_FEEDS = ("tests/client/test_feeds.py",)
_DEADLINES = "engine/net/deadlines.py"
_IN_TIME = ("tests/net/test_deadlines.py",)
_RUNS = ("tests/formats/wire/test_client.py",)
_CALL = "engine/client/append_call.py"
_IN_BULK = (
    "tests/client/test_append_call.py",
    "tests/client/test_append_call_ends.py",
    "tests/client/test_append_sources.py",
    "tests/client/test_append_histories.py",
)

CLIENTS: tuple[Slip, ...] = (
    Slip(
        _FILE,
        'update += f" AND HIGH_WATER_MARK = {number - 1:d}"',
        "pass",
        _APPLIER,
        "what was committed without an answer is applied twice",
    ),
    Slip(
        _FILE,
        "self._marks[partition] < number",
        "False",
        _APPLIER,
        "a transaction behind a gap counts as applied by somebody else",
    ),
    Slip(
        _FILE,
        "self.close()  # else what is left in it would be committed with the next",
        "pass",
        _APPLIER,
        "changes of an application that failed are committed with the next transaction",
    ),
    Slip(
        _FILE,
        "if commits:",
        "if False:",
        _APPLIER,
        "a connection that commits by itself leaves the mark of what is not applied",
    ),
    Slip(
        "engine/client/log_client.py",
        "client_id, begins[number], queue)",
        "client_id, after, queue)",
        ("tests/client/test_log_client.py",),
        "partitions of one feed begin behind a mark that is not theirs",
    ),
    Slip(
        "engine/client/log_client.py",
        "if queue.qsize() == self.options.ahead // 2:",
        "if queue.qsize() == self.options.ahead // 2 and getattr(item, 'partition', None) in mounts:",
        _FEEDS,
        "a feed stands still for ever behind the end of one of its partitions",
    ),
    Slip(
        "engine/client/log_client.py",
        "of_silence=is_data",
        "of_silence=False",
        ("tests/client/test_questions.py",),
        "data that takes long to come is asked for again and again, and never comes",
    ),
    Slip(
        _MOUNT,
        "            self._connection.resume()  # this mount's reader will not come to do it; others pause it again\n",
        "            pass\n",
        _FEEDS,
        "a partition that comes to a server again is never heard of",
    ),
    Slip(
        _MOUNT,
        "if transaction_id != self.position + 1:",
        "if transaction_id <= self.position:",
        _MOUNTED,
        "a transaction that the feed left out is passed over",
    ),
    Slip(
        _MOUNT,
        "if client == self.client_id and sequence in pending:",
        "if sequence in pending:",
        _MOUNTED,
        "another client's transaction counts as this one's append",
    ),
    Slip(
        _MOUNT,
        "self._pass_over()  # what was sent before this one can no longer come",
        "pending.popitem(last=False)",
        _MOUNTED,
        "an append that the server passed over is never decided",
    ),
    Slip(
        _MOUNT,
        "if in_the_way <= self.position]",
        "if in_the_way < self.position]",
        _MOUNTED,
        "an append that a lock refused waits for a transaction that may never come",
    ),
    Slip(
        _MOUNT,
        "if self._owed or not self.ready.is_set():",
        "if not self.ready.is_set():",
        _IN_BULK,
        "a new append is sent in front of one that was refused",
    ),
    Slip(
        _MOUNT,
        "self.options.in_flight - len(self._pending), SPENT_AT - self._sequence",
        "self.options.in_flight - len(self._pending), SPENT_AT + 1 - self._sequence",
        _IN_BULK,
        "the reserve of request ids is taken for what is new",
    ),
    Slip(
        _MOUNT,
        "self.options.in_flight - len(self._pending), SPENT_AT - self._sequence",
        "self.options.in_flight + 1 - len(self._pending), SPENT_AT - self._sequence",
        _IN_BULK,
        "one append more is under way than was asked for",
    ),
    Slip(
        _MOUNT,
        "        self._owed -= len(call.again)\n        self._next_turns()",
        "        self._next_turns()",
        _IN_BULK,
        "a call that is given up with something to send again stops all appends of the partition",
    ),
    Slip(
        _MOUNT,
        "        for sequence in call.sent:\n            self._pending.pop(sequence, None)\n",
        "",
        _IN_BULK,
        "what was given up takes room for ever",
    ),
    Slip(
        _MOUNT,
        "            self._queue.move_to_end(call)",
        "            pass",
        _IN_BULK,
        "a long call has all the turns",
    ),
    Slip(
        _MOUNT,
        "        elif had_one:\n",
        "        else:\n",
        _IN_BULK,
        "a call whose appends are decided loses its turn",
    ),
    Slip(
        _MOUNT,
        "sorted(one for one in again if one[0] < call.stops_at)",
        "[one for one in again if one[0] < call.stops_at]",
        _IN_BULK,
        "what is sent again is not in its order",
    ),
    Slip(
        _MOUNT,
        "sorted(one for one in again if one[0] < call.stops_at)",
        "sorted(again)",
        _IN_BULK,
        "what stands behind an error is sent again",
    ),
    Slip(
        _MOUNT,
        "                call.fail(error, place)\n                break",
        "                call.fail(error, place)\n                continue",
        _IN_BULK,
        "what stands behind an error is sent",
    ),
    Slip(
        _CALL,
        "        self._tell()\n        if self._error is not None:\n            raise self._error\n",
        "        if self._error is not None:\n            raise self._error\n        self._tell()\n",
        _IN_BULK,
        "what is committed is not told when the call ends with an error",
    ),
    Slip(
        _CALL,
        "if self._failure is None or place < self.stops_at:",
        "if self._failure is None:",
        _IN_BULK,
        "of two errors the one behind is raised, and what is between them is sent",
    ),
    Slip(
        _CALL,
        "if self._committed or not (self.sent or self.again or self._wants_more):",
        "if self._committed:",
        _IN_BULK,
        "a call that waits for who gives the drafts is late",
    ),
    Slip(
        _CALL,
        "if self._committed or not (self.sent or self.again or self._wants_more):",
        "if not (self.sent or self.again or self._wants_more):",
        _IN_BULK,
        "what is committed and not told as yet is late",
    ),
    Slip(
        _CALL,
        "        self._gets_on()\n        committed, self._committed = self._committed, []",
        "        committed, self._committed = self._committed, []",
        _IN_BULK,
        "a call whose last drafts are under way is late although they are committed one after the other",
    ),
    Slip(
        _CALL,
        "return bool(self._found) or (self._reading.done() and not self.ended)",
        "return bool(self._found)",
        _IN_BULK,
        "the end of an asynchronous source is never noticed",
    ),
    Slip(
        _CALL,
        "while len(self._found) >= self._ahead:",
        "while len(self._found) > self._ahead:",
        _IN_BULK,
        "more is read ahead than may be",
    ),
    Slip(
        "formats/wire/append_frames.py",
        "if not (write_locks or read_locks or append_locks):",
        "if not (write_locks or append_locks):",
        _RUNS,
        "read locks are left out",
    ),
    Slip(
        "engine/client/server_endpoint.py",
        "if mount is not None:\n                mount.fed(rows)",
        "if mount is not None and partition == 0:\n                mount.fed(rows)",
        ("tests/client/test_log_client.py",),
        "one partition's feed alone is looked at",
    ),
    Slip(
        _DEADLINES,
        "if deadline.when > now:",
        "if deadline.when >= now:",
        _IN_TIME,
        "a deadline that is over waits for the next ring",
    ),
    Slip(
        _DEADLINES,
        "self._task.uncancel() <= self._cancelling and kind",
        "kind",
        _IN_TIME,
        "a task that was cancelled goes on, if that was in the moment of its deadline",
    ),
    Slip(
        _DEADLINES,
        "        self._line.running.pop(self, None)\n",
        "",
        _IN_TIME,
        "a call that is done is cancelled later, in whatever its task does then",
    ),
    Slip(
        _DEADLINES,
        "        self._forget(self._seconds)\n",
        "",
        _IN_TIME,
        "a timer stays for each length that was ever used",
    ),
    Slip(
        "formats/wire/frame.py",
        "if buffer.startswith(prefix, at) and at + size <= len(buffer):",
        "if buffer.startswith(prefix, at):",
        _RUNS,
        "half a frame counts as a whole one",
    ),
    Slip(
        "formats/wire/frame.py",
        "            elif buffer.startswith(empty, at):\n",
        "            elif False:\n",
        _RUNS,
        "behind a keep-alive a transaction of a feed is taken for an answer",
    ),
    Slip(
        "formats/wire/frame.py",
        "or not 0 <= length <= max_body:",
        "or not 0 <= length <= max_body + 1:",
        ("tests/server/test_client_port.py",),
        "a frame longer than agreed on is waited for",
    ),
    Slip(
        "engine/client/server_endpoint.py",
        "        self.failure = None\n        made.fed",
        "        made.fed",
        ("tests/client/test_why_late.py",),
        "whoever waits for a server that is gone hears why another time's connection failed",
    ),
    Slip(
        "engine/client/server_endpoint.py",
        "            except WaltzError as error:\n                for mount in",
        "            except ImportError as error:\n                for mount in",
        ("tests/client/test_why_late.py",),
        "a feed to a server that may not be connected to stands still for ever",
    ),
)
