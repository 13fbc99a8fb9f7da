"""Slips in the recovery of a partition; those in the vote by bytes stand with the rooms of nodes."""

from __future__ import annotations

from tests.mutation.trial import Slip

_RECOVERY = ("tests/quorum/test_recovery.py",)
_FILE = "engine/quorum/recovery.py"

QUORUM: tuple[Slip, ...] = (
    Slip(
        _FILE,
        "holders < quorum <= holders + unknown",
        "holders < quorum < holders + unknown",
        _RECOVERY,
        "a transaction that an absent replica may have made acknowledged is cut",
    ),
    Slip(
        _FILE, "value < lowest or ", "", _RECOVERY, "what no voter decided about is the mark: acknowledged ones are cut"
    ),
    Slip(
        _FILE,
        "absent=state.absent, quorum=state.last_quorum",
        "absent=0, quorum=state.last_quorum",
        _RECOVERY,
        "replicas that cannot be asked count as holding nothing",
    ),
    Slip(
        _FILE,
        "in_session=one.in_session or marked,",
        "in_session=one.in_session,",
        _RECOVERY,
        "a replica whose answer was lost is written as closed though it took part",
    ),
    Slip(
        _FILE,
        "state = _update(state, Replica(node, one.last, in_session=one.in_session, reason=reason))",
        "state = _update(state, Replica(node, one.last, reason=reason))",
        _RECOVERY,
        "a replica that failed is written as closed in the session it took part in",
    ),
    Slip(
        _FILE,
        "        if one.held > mark:\n            return Truncate(one.node, mark)\n",
        "",
        _RECOVERY,
        "what lies behind the mark stays, and is taken for the session's own",
    ),
    Slip(
        _FILE,
        "if not state.is_open and len(ready) >= state.quorum:",
        "if not state.is_open and len(state.recovered) >= state.quorum:",
        _RECOVERY,
        "the session opens before the metadata says who took part",
    ),
    Slip(
        _FILE,
        "if len(state.recovered) < state.quorum and not state.is_open:",
        "if len(state.recovered) < state.quorum - 1 and not state.is_open:",
        _RECOVERY,
        "a minority opens a session",
    ),
    Slip(
        _FILE,
        "event.session_id < last.session_id",
        "event.session_id < last.session_id - 1",
        _RECOVERY,
        "a storage that was restored from an older copy votes",
    ),
    Slip(
        _FILE,
        "votes = held >= event.low_water_mark",
        "votes = True",
        _RECOVERY,
        "a replica that was far behind votes the others down",
    ),
    Slip(
        _FILE,
        "    elif last.session_id < state.latest_session:\n        cut_to = event.low_water_mark\n",
        "",
        _RECOVERY,
        "a replica of an older session votes",
    ),
    Slip(
        _FILE,
        "replace(one.last, session_id=state.latest_session, closing_high_water_mark=mark)",
        "replace(one.last, closing_high_water_mark=UNRESOLVED)",
        _RECOVERY,
        "a replica that missed the session votes in the next one",
    ),
    Slip(
        _FILE,
        "(mark is not None or other.last is not None)",
        "True",
        _RECOVERY,
        "before the vote a replica copies from a new one",
    ),
    Slip(
        _FILE,
        "last = source.held if mark is None else min(source.held, mark)",
        "last = source.held",
        _RECOVERY,
        "a replica copies what lies behind the mark",
    ),
    Slip(
        _FILE,
        "or {\n        node: ReplicaState(partition, node, -1, UNRESOLVED) for node in nodes\n    }",
        "or {}",
        _RECOVERY,
        "metadata that was lost takes the log with it",
    ),
    Slip(
        _FILE,
        "sum(one < value for one in lost)",
        "0",
        _RECOVERY,
        "what a replaced disk may have acknowledged is cut from the only replica that has it",
    ),
    Slip(
        "engine/quorum/vote.py",
        "return absent > 0 and absent + lost >= quorum",
        "return absent > 0 and absent + lost > quorum",
        _RECOVERY,
        "what a replaced disk and a replica that is down acknowledged is written over",
    ),
    Slip(
        "engine/quorum/vote.py",
        "return absent > 0 and absent + lost >= quorum",
        "return absent + lost >= quorum",
        _RECOVERY,
        "where a majority lost their disks the partition waits for nobody, for ever",
    ),
    Slip(
        _FILE,
        "keepers=state.keepers - {one.node}) if lost else _update(state, found)",
        "keepers=state.keepers) if lost else _update(state, found)",
        ("tests/quorum/test_one_step.py",),
        "a mark is set that a disk which was replaced is thought to keep",
    ),
    Slip(
        _FILE,
        "        case Connected(node, session_id) if session_id < state.session_id and _replica_of(state, node).in_session:\n",
        "        case Connected(node, session_id) if session_id < -1 and _replica_of(state, node).in_session:\n",
        _RECOVERY,
        "a disk that is replaced while its session is open passes in the next one for a replica that held nothing",
    ),
    Slip(
        _FILE,
        "lost = not marked and event.session_id < state.latest_session and one in state.voters",
        "lost = not marked and event.session_id < state.latest_session",
        ("tests/quorum/test_one_step.py",),
        "a replica that never took part is waited for as if it had lost something",
    ),
    Slip(
        "engine/quorum/vote.py",
        "(ballot.open_end or ballot.blank)",
        "ballot.open_end",
        ("tests/compare/test_compare.py",),
        "compare plans to cut what a replaced disk may have acknowledged",
    ),
    Slip(
        "engine/compare/compare.py",
        "(began and end == 0 and ballot.session_id == -1)",
        "(end == 0 and ballot.session_id == -1)",
        ("tests/compare/test_gathering.py",),
        "replicas of a partition that never had a session are open beside each other",
    ),
    Slip(
        "engine/quorum/vote.py",
        "> self.replicas - self.members",
        ">= self.replicas - self.members",
        ("tests/quorum/test_vote.py",),
        "a replica that was closed before the last session keeps everything open",
    ),
    Slip(
        "engine/quorum/vote.py",
        "lost = sum(one.blank or (one.open_end and votes) for one, votes in zip(ballots, self.voters, strict=True))",
        "lost = 0",
        ("tests/quorum/test_vote.py",),
        "offline, what a replaced disk and a missing one acknowledged together is cut",
    ),
    Slip(
        "engine/compare/compare.py",
        "if options.cluster is not None and options.cluster != found:",
        "if False:",
        ("tests/compare/test_compare.py",),
        "directories are cut by what another cluster's metadata says",
    ),
)
