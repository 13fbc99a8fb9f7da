"""Slips in the node, the comparison of replicas, and the formats: who may write, what is kept, what is read."""

from __future__ import annotations

from tests.mutation.trial import Slip

_STEP = ("tests/node/test_one_step.py",)
_VOTE = ("tests/quorum/test_vote.py",)
_LEDGER = ("tests/formats/test_accepted_losses.py",)

NODES: tuple[Slip, ...] = (
    Slip(
        "engine/node/permissions.py",
        "    if session_id < state.session:\n",
        "    if session_id < state.session - 1:\n",
        _STEP,
        "a server that was just replaced appends",
    ),
    Slip(
        "engine/node/permissions.py",
        "return not offline and session_id > state.session",
        "return not offline and session_id > state.session + 1",
        _STEP,
        "the older session is not shut out",
    ),
    Slip(
        "engine/node/permissions.py",
        "if max_transaction_id > low_water_mark:",
        "if max_transaction_id > low_water_mark + 1:",
        _STEP,
        "a session begins with a log that is longer than its mark",
    ),
    Slip(
        "engine/node/permissions.py",
        "    if session_id < persisted_session:",
        "    if session_id < persisted_session - 1:",
        _STEP,
        "an older session sets the mark",
    ),
    Slip(
        "engine/node/permissions.py", "        if new < old:", "        if new < old - 1:", _STEP, "a mark falls by one"
    ),
    Slip(
        "engine/node/partition_requests.py",
        "after < min(mark, partition.max_transaction_id) and not m.offline",
        "after < min(mark, partition.max_transaction_id) - 1 and not m.offline",
        ("tests/node/test_one_step.py", "tests/node/test_service.py"),
        "a truncation below the mark is refused in other words",
    ),
    Slip(
        "engine/node/outages.py",
        "    if transaction_id is None:\n",
        "    if not transaction_id:\n",
        _STEP,
        "a node whose first record is damaged answers sessions it cannot serve",
    ),
    Slip(
        "engine/node/outages.py",
        "isinstance(error, DiskWriteError) and error.errno not in _TEMPORARY_ERRORS",
        "isinstance(error, DiskWriteError) and error.errno in _TEMPORARY_ERRORS",
        _STEP,
        "a disk that fails keeps a partition in",
    ),
    Slip(
        "engine/node/outages.py",
        "partition.read(transaction_id)",
        "partition.read(transaction_id + 1)",
        _STEP,
        "a partition comes back while its record cannot be read",
    ),
    Slip(
        "engine/node/outages.py",
        "time.monotonic() - self._found_full_at < self.max_age",
        "time.monotonic() - self._found_full_at < 0",
        ("tests/node/test_outages.py",),
        "every request looks at the disk",
    ),
    Slip(
        "engine/node/access_control.py",
        "            self._fences.raise_to(self._partition.number, session_id)\n",
        "",
        _STEP,
        "a restart lets an old server in again",
    ),
    Slip("engine/quorum/vote.py", "replicas // 2 + 1", "(replicas + 1) // 2", _VOTE, "half of the replicas decide"),
    Slip(
        "engine/quorum/vote.py",
        "acknowledged = run.stop <= self.acknowledged + 1",
        "acknowledged = run.stop <= self.acknowledged",
        _VOTE,
        "the transaction at the mark is cut",
    ),
    Slip(
        "engine/quorum/vote.py",
        "border, end = self.acknowledged + 1, 0",
        "border, end = self.acknowledged, 0",
        _VOTE,
        "the transaction at the mark is cut",
    ),
    Slip(
        "engine/quorum/vote.py",
        "one.session_id >= least)",
        "one.session_id > least)",
        _VOTE,
        "replicas of the present session have no vote",
    ),
    Slip(
        "engine/quorum/vote.py",
        "least = sessions[quorum - 1] if len(sessions) >= quorum else None",
        "least = sessions[0] if sessions else None",
        _VOTE,
        "a replica alone in a session takes the vote of all others",
    ),
    Slip(
        "engine/quorum/vote.py",
        "damaged + unknown < self.quorum",
        "damaged + unknown <= self.quorum",
        _VOTE,
        "what a quorum held, damaged, is cut in silence",
    ),
    Slip(
        "engine/quorum/vote.py",
        "            if first < border < self.stop:",
        "            if first <= border < self.stop:",
        _VOTE,
        "runs without a transaction",
    ),
    Slip(
        "engine/compare/states.py",
        "        if self.end > kept:\n            return ReplicaStanding.AHEAD",
        "        if self.end > kept + 1:\n            return ReplicaStanding.AHEAD",
        ("tests/compare/test_one_step.py",),
        "a replica that is ahead by one counts as equal",
    ),
    Slip(
        "engine/compare/states.py",
        "return ReplicaStanding.BEHIND if self.end < kept else ReplicaStanding.EQUAL",
        "return ReplicaStanding.BEHIND if self.end < kept - 1 else ReplicaStanding.EQUAL",
        ("tests/compare/test_one_step.py",),
        "a replica that is behind by one counts as equal",
    ),
    Slip(
        "engine/compare/states.py",
        "beyond = decision.clean_to if self.end > kept else None",
        "beyond = decision.clean_to if self.end > kept + 1 else None",
        ("tests/compare/test_one_step.py",),
        "a transaction that no quorum holds is not cut",
    ),
    Slip(
        "formats/accepted_losses.py",
        "elif count != len(found):",
        "elif count > len(found) + 1:",
        _LEDGER,
        "a ledger that lost a line looks whole",
    ),
    Slip(
        "formats/accepted_losses.py",
        "elif not whole or count is None:",
        "elif count is None:",
        _LEDGER,
        "a ledger that is cut off looks whole",
    ),
    Slip(
        "formats/accepted_losses.py",
        '_number(body["to_transaction_id"], first)',
        '_number(body["to_transaction_id"], 0)',
        _LEDGER,
        "a range that ends in front of its beginning is believed",
    ),
    Slip(
        "formats/accepted_losses.py",
        "not least <= value < LAST_TRANSACTION_ID",
        "not least <= value < LAST_TRANSACTION_ID + 1",
        _LEDGER,
        "the id behind the last one has no room",
    ),
    Slip(
        "formats/accepted_losses.py",
        "if stored != _digest(body):",
        "if False:",
        _LEDGER,
        "a damaged line of the ledger is believed",
    ),
    Slip(
        "waltzctl/foreground.py",
        "            except Exception as error:  # a defect",
        "            except ValueError as error:  # a defect",
        ("tests/cli/test_serve.py::test_a_reload_that_meets_a_mistake_of_ours_is_not_the_last_one",),
        "behind a reload that fails in a way nobody thought of every later one is passed over until a restart",
    ),
    Slip(
        "engine/node/node.py",
        "            self.data.limits = before\n",
        "",
        ("tests/node/test_hosting.py::test_limits_for_which_there_is_no_memory_change_nothing",),
        "a configuration that is refused holds for one port and not for the other",
    ),
)
