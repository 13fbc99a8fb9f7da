"""What the rules are made of: a directory before a command, and what may be different after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.trust.injuries_repairs import provable
from tests.trust.reader import RECORDS, Intact, Member, Reading, ranges, read_directory
from tests.trust.running import Said
from tests.trust.scene import Scene, Tree, read_tree
from waltzctl.app import COMMANDS, manual_of
from waltzctl.exit_status import ExitStatus

STATUSES = {manual_of(one).name: set(manual_of(one).statuses) - {ExitStatus.USAGE} for one in COMMANDS}
"""What each command may answer to arguments that are right."""
LINE = b"appended by the test"


def sound_answer(said: Said) -> Iterator[str]:
    """No traceback, and a status that the manual names."""
    name = said.command.split()[0]
    if "Traceback (most recent call last)" in said.err or "internal error" in said.err:
        last = [line for line in said.err.splitlines() if line.strip()][-2:]
        yield f"{name}: a traceback: {' / '.join(last)}"
    elif said.status == ExitStatus.USAGE and "the control file has partitions" in said.err:
        pass  # a damaged control file has fewer than there are, and the one that was asked for is none of them
    elif said.status not in STATUSES[name]:
        yield f"{name}: exit status {said.status} is not in its manual: {said.err.strip()[:300]}"


@dataclass(frozen=True)
class Before:
    """A directory before a command: what the reader finds, and which true ids it proves."""

    tree: Tree
    reading: Reading
    wanted: dict[int, set[int]]
    truth: dict[int, dict[int, bytes]]
    given_up: dict[int, set[int]]

    @classmethod
    def of(cls, scene: Scene, root: Path) -> Before:
        reading = read_directory(root)
        wanted = provable(scene, reading)
        for number, ids in scene.given_up.items():
            wanted.setdefault(number, set()).update(ids)
        return cls(read_tree(root), reading, wanted, scene.truth, scene.given_up)

    @property
    def borne_out(self) -> dict[int, set[int]]:
        """Of `wanted` what is proven beside a sound replica: that has the same records, and tells which ids are wrong.

        What only a wrong id says to have been here, nothing does then.
        """
        found = {}
        for number, ids in self.wanted.items():
            partition, truth = self.reading.partitions.get(number), self.truth.get(number, {})
            end, own = 0, {true[8:-4]: one for one, true in truth.items()}
            for member in () if partition is None else partition.members:
                here = [own[one.data[8:-4]] for one in member.records if one.data[8:-4] in own]
                end = max([end, *(one + 1 for one in here)])
            others = () if partition is None else partition.by.items()
            end = max([end, *(bound for proof, bound in others if not proof.startswith(RECORDS))])
            found[number] = {one for one in ids if one < end or one in self.given_up.get(number, ())}
        return found

    @property
    def disputed(self) -> set[tuple[int, int]]:
        """Partition and id of records that cannot all stay.

        Two forms of one are in place, they stand in no order, or no id is left for what is damaged between them.
        """
        found = {
            (number, one)
            for number, partition in self.reading.partitions.items()
            for one, forms in partition.in_place.items()
            if len(forms) > 1
        }
        for member in (one for partition in self.reading.partitions.values() for one in partition.members):
            true = [
                one for one in member.records if self.truth.get(one.partition, {}).get(one.transaction_id) == one.data
            ]
            found |= {
                (record.partition, record.transaction_id)
                for before, after in pairwise(true)
                if before.transaction_id >= after.transaction_id
                for record in (before, after)
            }
            found |= {(one.partition, one.transaction_id) for one in (*crowded(member.records), *behind_twins(member))}
        return found

    def floor(self, partition: int) -> int:
        """The id behind the last true one that is proven: the lowest that may be given away."""
        return max(self.wanted.get(partition, ()), default=-1) + 1


def true_records(scene: Scene, reading: Reading) -> set[tuple[int, int]]:
    """Partition and id of every true record that stands anywhere, in whatever file."""
    return {
        (one.partition, one.transaction_id)
        for one in reading.intact
        if scene.truth.get(one.partition, {}).get(one.transaction_id) == one.data
    }


def true_in_place(scene: Scene, reading: Reading) -> set[tuple[int, int]]:
    """Partition and id of every true record that stands where it belongs."""
    return {
        (number, one)
        for number, partition in reading.partitions.items()
        for one, forms in partition.in_place.items()
        if scene.truth.get(number, {}).get(one) in forms
    }


def false_in_place(scene: Scene, reading: Reading) -> set[tuple[int, int, bytes]]:
    """Records in place that were never the partition's: id and bytes.  What lies within damage is not in place."""
    return {
        (number, one.transaction_id, one.data)
        for number, partition in reading.partitions.items()
        for member in partition.members
        if member.suffix == ".seg" and not member.foreign
        for one in member.records
        if one.joined and scene.truth.get(number, {}).get(one.transaction_id) != one.data
    }


def crowded(records: Sequence[Intact]) -> Iterator[Intact]:
    """Records whose ids jump and go on one by one to damage, behind which comes no larger id than the next one.

    Either one is missing in front of them and what is damaged was none, or their ids are wrong: nobody can know.
    """
    row: list[Intact] = []
    for before, one in pairwise(records):
        joins = before.offset + len(before.data) == one.offset
        if joins and one.transaction_id == before.transaction_id + 1:
            row += [one] if row else []
        elif joins:
            row = [one] if one.transaction_id > before.transaction_id else []
        else:
            if one.transaction_id <= before.transaction_id + 1:
                yield from row
            row = []


def behind_twins(member: Member) -> Sequence[Intact]:
    """Records behind the last two of one id, up to the end of the file: one of the two is too many, or these ids are wrong."""
    for place in range(len(member.records) - 1, 0, -1):
        if member.records[place].transaction_id == member.records[place - 1].transaction_id:
            return (
                member.records[place:]
                if member.records[-1].offset + len(member.records[-1].data) == member.size
                else ()
            )
    return ()


def stood_there(scene: Scene, reading: Reading, one: tuple[int, int, bytes]) -> bool:
    """Whether a record is one of the partition's under another id, and stood so in its own data files before.

    Behind damage it is in place only once that is gone, and in a file with a damaged header only once that is mended.  It is no
    record's data, for all of it but the id is a true record's.
    """
    number, _, data = one
    truth = scene.truth.get(number, {}).values()
    partition = reading.partitions.get(number)
    if partition is None or data[8:-4] not in {true[8:-4] for true in truth}:
        return False
    return any(
        data in stood and (not member.foreign or stood & set(truth))
        for member in partition.members
        if member.suffix == ".seg"
        for stood in ({record.data for record in member.records},)
    )


def shown(records: set[tuple[int, int]]) -> str:
    """``2: 3-5, 9`` for each partition."""
    partitions = sorted({number for number, _ in records})
    return "; ".join(f"{p}: {ranges(one for number, one in records if number == p)}" for p in partitions)


def pairs(ids: dict[int, set[int]]) -> set[tuple[int, int]]:
    """Partition and id of each."""
    return {(number, one) for number, of in ids.items() for one in of}


def kept_and_true(scene: Scene, before: Before, after: Reading, what: str, *, loss: bool) -> Iterator[str]:
    """Nothing intact is gone, nothing false has come in.

    Where intact records contradict one another and losses are accepted, one of them goes, and nobody can know which.
    """
    disputed = before.disputed if loss else set()
    gone = true_records(scene, before.reading) - true_records(scene, after) - disputed
    if gone:
        yield f"{what}: intact records are gone ({shown(gone)})"
    moved = true_in_place(scene, before.reading) - true_in_place(scene, after) - gone - disputed
    if moved:
        yield f"{what}: intact records stand no more where they belong ({shown(moved)})"
    came = false_in_place(scene, after) - false_in_place(scene, before.reading)
    if came := {
        one for one in came if not one[2][36:].startswith(LINE) and not stood_there(scene, before.reading, one)
    }:
        yield f"{what}: records that are not the partition's were let in ({shown({one[:2] for one in came})})"
