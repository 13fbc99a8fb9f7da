"""Slips in what applications build on: a client's appends and feeds, and a feed applied to a database exactly once."""

from __future__ import annotations

from tests.mutation.trial import Slip

_APPLIER = ("tests/client/test_sql_applier.py",)
_FILE = "engine/client/sql_applier.py"
_MOUNTED = ("tests/client/test_partition_mount.py",)
_MOUNT = "engine/client/partition_mount.py"
_DEADLINES = "engine/net/deadlines.py"
_IN_TIME = ("tests/net/test_deadlines.py",)
_RUNS = ("tests/formats/wire/test_client.py",)

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
        _MOUNT,
        "or transaction_id != self.position + 1:",
        "or transaction_id <= self.position:",
        _MOUNTED,
        "a transaction that the feed left out is passed over",
    ),
    Slip(
        _MOUNT,
        "own = client == self.client_id and sequence in self._pending",
        "own = sequence in self._pending",
        _MOUNTED,
        "another client's transaction counts as this one's append",
    ),
    Slip(
        _MOUNT,
        "            _set(one, None)  # what was sent before this one can no longer come",
        "            pass",
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
)
