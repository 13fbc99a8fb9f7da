"""Slips in what applications build on: a feed applied to a database exactly once."""

from __future__ import annotations

from tests.mutation.trial import Slip

_APPLIER = ("tests/client/test_sql_applier.py",)
_FILE = "engine/client/sql_applier.py"

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
)
