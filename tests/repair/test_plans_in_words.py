"""What plans say in words: the reason of each step, and what is told of each thing that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair import test_plans_of_files, test_plans_of_losses
from tests.repair.twelve import Damage, Twelve
from waltzctl.engine.repair.recover import plan_recover

DAMAGE: dict[str, Damage] = {
    name: case[0] for table in (test_plans_of_files.CASES, test_plans_of_losses.CASES) for name, case in table.items()
}


def words(place: Path, name: str, way: str) -> str:
    """One sentence a line; checksums and places are not told."""
    d = Twelve(place / "d")
    DAMAGE[name](d)
    replicas = [Twelve(place / "r").root] if "replica" in way else []
    plan = plan_recover(d.root, replicas=replicas, allow_data_loss="loss" in way).plan
    lines = [*(one.reason for one in plan.steps), *(f"? {one.message}" for one in plan.undecided)]
    return "\n".join(lines).replace(f"{place}/", "").replace("0" * 18, "")


WORDS: dict[tuple[str, str], str] = {
    ("other records twice", "unasked"): """
        ? the segment begins at transaction 8, the one in front of it ends at 9: 2 transactions may stand in both;
          transactions 8 to 9 stand twice: in 4.seg, which goes on to 9, and here, up to 11; for 4.seg: nothing; for
          8.seg: nothing
        """,
    ("one other record twice at the end", "unasked"): """
        ? the segment begins at transaction 8, the one in front of it ends at 8: 1 transactions may stand in both;
          transaction 8 stands twice: in 4.seg, which goes on to 8, and here, up to 8; for 4.seg: nothing; for
          8.seg: nothing
        ? the last transaction is 8, but the local low-water mark is 9: transaction 9 was durable here once; no
          replica was named (recover --from)
        """,
    ("other records twice", "loss"): """
        transaction 7 becomes its last one: 8.seg is kept: both runs differ and nothing tells which is right; it
          reaches further
        16 bytes are there beyond the last record
        disputed; verify names it until a replica tells which record is right, or until recover --forget-losses
        """,
    ("other records twice", "replica"): """
        transaction 7 becomes its last one: 8.seg is kept: r holds the same records
        16 bytes are there beyond the last record
        """,
    ("other records twice and further in front", "loss"): """
        4.seg is kept: both runs differ and nothing tells which is right; it reaches further
        4.seg is kept: both runs differ and nothing tells which is right; it reaches further
        disputed; verify names it until a replica tells which record is right, or until recover --forget-losses
        """,
    ("other records twice and further in front", "replica"): """
        16 bytes are there beyond the last record
        ? the segment begins at transaction 8, the one in front of it ends at 11: 4 transactions may stand in both;
          transactions 8 to 9 stand twice: in 4.seg, which goes on to 11, and here, up to 9; for 4.seg: nothing; for
          8.seg: r holds the same records; but what the other one holds beyond stands nowhere else
        """,
    ("the same records twice, the later torn", "unasked"): """
        16 bytes are there beyond the last record
        ? the segment begins at transaction 8, the one in front of it ends at 11: 4 transactions may stand in both;
          transaction 8 stands twice: in 4.seg, which goes on to 11, and here, up to 8; the later one is torn
        """,
    ("the same records twice, one damaged", "unasked"): """
        ? the segment begins at transaction 8, the one in front of it ends at 9: 2 transactions may stand in both;
          transactions 8 to 9 stand twice: in 4.seg, which goes on to 9, and here, up to 11; one of them is damaged:
          once that is mended, they can be compared
        ? transaction 5: checksum stored b5b6e26b, computed dccfe90e; next valid record at offset 248 (transaction
          6); 60 bytes unreadable; no replica was named (recover --from)
        """,
    ("another record twice, of which a segment behind tells", "unasked"): """
        transaction 3 becomes its last one: 4.seg is kept: the next segment begins with 8, where it ends
        8 bytes are there beyond the last record
        """,
    ("another name, and other records in its place", "unasked"): """
        ? no segment has this name; what it holds stands under the right names too; release 0.13.2 takes it for a
          segment; nothing proves what it is: 4.seg stands in its place and holds other bytes
        """,
    ("another name of a damaged one", "unasked"): """
        ? no segment has this name; transactions 4, 6 to 7 stand only here, where nobody who goes by the names of
          segments sees them; release 0.13.2 takes it for a segment; nothing proves what it is: it is damaged at
          offset 188
        ? transactions 4 to 7 are missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        """,
    ("another name of an empty one", "unasked"): """
        ? no segment has this name; release 0.13.2 takes it for a segment; nothing proves what it is: it holds no
          record
        ? transactions 4 to 7 are missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        """,
    ("another name of one that ends early", "unasked"): """
        ? no segment has this name; transactions 4 to 6 stand only here, where nobody who goes by the names of
          segments sees them; release 0.13.2 takes it for a segment; nothing proves what it is: it leads to
          transaction 7, 8.seg begins with 8
        ? transactions 4 to 7 are missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        """,
    ("another name behind a gap", "unasked"): """
        ? no segment has this name; transactions 8 to 11 stand only here, where nobody who goes by the names of
          segments sees them; release 0.13.2 takes it for a segment; nothing proves what it is: 0.seg leads to
          transaction 4, it begins with 8
        ? the last transaction is 3, but the local low-water mark is 9: transactions 4 to 9 were durable here once;
          no replica was named (recover --from)
        """,
    ("another name behind one with a torn end", "unasked"): """
        8 bytes are there beyond the last record
        ? no segment has this name; transactions 8 to 11 stand only here, where nobody who goes by the names of
          segments sees them; release 0.13.2 takes it for a segment; nothing proves what it is: 4.seg, which stands
          in front of it, is damaged itself
        ? transaction 6: not even a record's header is whole; nothing valid follows; 2 bytes are left, at or below
          the local low-water mark 9; no replica was named (recover --from)
        ? the last transaction is 6, but the local low-water mark is 9: transactions 7 to 9 were durable here once;
          no replica was named (recover --from)
        """,
    ("another name behind nothing", "unasked"): """
        ? no segment has this name; transactions 4 to 7 stand only here, where nobody who goes by the names of
          segments sees them; release 0.13.2 takes it for a segment; nothing proves what it is: it begins with
          transaction 4, and no segment stands in front of it
        ? transactions 0 to 7 are missing: the partition's first segment begins at 8; no replica was named (recover
          --from)
        """,
    ("two other names of one", "unasked"): """
        header, records and neighbours prove that it is 8.seg
        belongs to the data file
        the index is missing
        ? no segment has this name; what it holds stands under the right names too; release 0.13.2 takes it for a
          segment; nothing proves what it is: another file is taken for 8.seg already
        """,
    ("another name", "unasked"): """
        header, records and neighbours prove that it is 4.seg
        belongs to the data file
        the index is missing
        """,
    ("a copy", "unasked"): """
        a copy of 4.seg, byte for byte
        belongs to the data file
        """,
    ("a whole header", "unasked"): """
        segment-name, segment-key: file name and first record agree on the first transaction id, control file and
          index header agree on the cluster key, the creation time is the index header's, the entries of the index
          are where its records begin
        """,
    ("a cluster key without an index", "unasked"): """
        ? the header's cluster key is 01224567-89ab-cdef-0123-456789abcdef, the control file says
          01234567-89ab-cdef-0123-456789abcdef; nothing proves what the header was: damaged, misplaced or renamed;
          if it is not this partition's, move it away by hand, then recover with --from what belongs here
        """,
    ("a pipe", "unasked"): """
        ? it is a FIFO, not a regular file; a released node does not start with it; nothing is planned for the
          partition while no regular file stands there
        """,
    ("an empty index beyond the end", "unasked"): """
        ? transactions 12 to 13 are missing at the end, and transactions 12 to 13 were durable here once: a file of
          the partition is called after transaction 14; no replica was named (recover --from)
        ? the index has no data file; it has no entries; transactions in front of 14 are missing
        """,
    ("part of a header behind the end", "unasked"): """
        shorter than its header; it holds no record
        belongs to the data file
        """,
    ("part of a header beyond the end", "unasked"): """
        ? transactions 12 to 13 are missing at the end, and transactions 12 to 13 were durable here once: a file of
          the partition is called after transaction 14; no replica was named (recover --from)
        ? the file has 127 bytes, a header has 128; nothing was ever written to it; what it held, or what was in
          front of it, is lost
        """,
    ("part of a header beyond the end", "loss"): """
        shorter than its header; it holds no record
        given up; verify names it until it is here again, or until recover --forget-losses
        """,
    ("an index beyond the records of the segment before", "unasked"): """
        an index without a data file
        ? transaction 7 is missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        """,
    ("an empty index behind the end", "unasked"): """
        an index without a data file
        """,
    ("accepted: a part of what is gone", "replica"): """
        transactions missing in front of 8.seg; proven by r: key, partition, ids, checksums and neighbours agree
        the index is missing
        what was given up is here again
        """,
    ("disputed", "unasked"): """
        ? transaction 5 was given up on then (why); other records bore these ids, too, and only an intact replica
          tells which are right
        """,
    ("disputed", "replica"): """
        a replica tells which record is right
        """,
    ("marks, and a torn end", "unasked"): """
        ? neither struct of partition 0 is valid: struct 1 at offset 132: checksum stored 05ec1599, computed
          7fd6def9, struct 2 at offset 168: checksum stored c61d3e25, computed bc27f545; session and marks are lost
        ? transaction 11: its data length 20 makes a record of 60 bytes; nothing valid follows; 55 bytes are left,
          the local low-water mark is not known; it may be acknowledged
        """,
    ("marks, and a torn end", "loss"): """
        neither struct is valid: session and marks begin anew at -1; the records stay
        the end is torn; above the local low-water mark -1
        8 bytes are there beyond the last record
        """,
    ("a torn end", "unasked"): """
        the end is torn; above the local low-water mark 9
        8 bytes are there beyond the last record
        """,
    ("those from the mark on", "loss"): """
        the end is torn; transactions up to 9 were durable here
        the local low-water mark falls from 9 to 8: what it promised is gone
        24 bytes are there beyond the last record
        given up; verify names it until it is here again, or until recover --forget-losses
        """,
    ("those from the mark on", "replica"): """
        the local low-water mark is 9; proven by r: key, partition, ids, checksums and neighbours agree
        16 bytes are there beyond the last record
        """,
    ("the last data file", "replica"): """
        the index of segment 8, whose data file is gone, ends with 11; proven by r: key, partition, ids, checksums
          and neighbours agree
        """,
    ("the last data file", "unasked"): """
        ? the last transaction is 7, but the local low-water mark is 9: transactions 8 to 9 were durable here once;
          no replica was named (recover --from)
        ? the index has no data file; it has 4 entries: transactions 8 to 11 were in it and nowhere else
        """,
    ("ids that go back", "unasked"): """
        ? transaction 9 is expected, but 7 stands there; nothing valid follows; no replica was named (recover
          --from)
        ? the last transaction is 8, but the local low-water mark is 9: transaction 9 was durable here once; no
          replica was named (recover --from)
        """,
    ("ids that jump at the end", "replica"): """
        a record here has id 11; proven by r: key, partition, ids, checksums and neighbours agree
        """,
    ("ids that jump at the end", "loss"): """
        record-order: transactions 9 to 19 are lost; what follows moves to 0000000000000000020.seg
        24 bytes are there beyond the last record
        the index is missing
        given up; verify names it until it is here again, or until recover --forget-losses
        """,
    ("a rival in front of a segment", "unasked"): """
        ? transaction 8 is expected, but 7 stands there; nothing valid follows; the next segment holds what belongs
          there
        """,
    ("a rival in front of a segment", "loss"): """
        the end is out of order; the next segment holds what belongs behind it
        8 bytes are there beyond the last record
        disputed; verify names it until a replica tells which record is right, or until recover --forget-losses
        """,
    ("a repeat at the end", "unasked"): """
        ? transaction 12 is expected, but 11 stands there; nothing valid follows; nothing in front of or behind
          these records tells that they are of no use
        """,
    ("a repeat at the end", "replica"): """
        the end is out of order; repeats, or a replica holds other records under their ids
        8 bytes are there beyond the last record
        """,
    ("a repeat in the middle", "loss"): """
        records out of order; no transaction is missing there
        8 bytes are there beyond the last record
        """,
    ("a rival in the middle", "replica"): """
        a repeat, or a replica holds another record under its id
        8 bytes are there beyond the last record
        """,
    ("every file", "loss"): """
        the local low-water mark falls from 9 to -1: what it promised is gone
        nothing is left: the log begins anew with transaction 0
        the index is missing
        given up; verify names it until it is here again, or until recover --forget-losses
        """,
    ("the directory", "unasked"): """
        ? partition 0 belongs to this node, but its directory does not exist; transactions up to 9 were durable in
          it; no replica gives its records
        """,
    ("a torn end in front of a segment", "loss"): """
        the end is torn; the segment is not the last: acknowledged records are given up
        8 bytes are there beyond the last record
        given up; verify names it until it is here again, or until recover --forget-losses
        ? transaction 7 is missing: segment 4.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        """,
    ("an inner header", "unasked"): """
        ? transactions 4 to 7 are missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        ? the file has 127 bytes, a header has 128; its index has 4 entries, so that records were in it; what it
          held, or what was in front of it, is lost
        """,
    ("an inner data file", "unasked"): """
        ? transactions 4 to 7 are missing: segment 0.seg ends before, and this one begins at 8; no replica was named
          (recover --from)
        ? the index has no data file; it has 4 entries: transactions 4 to 7 were in it and nowhere else; truncate in
          front of them, or bring the data file back
        """,
    ("a record in the middle", "replica"): """
        record-checksum; proven by r: key, partition, ids, checksums and neighbours agree
        """,
}


@pytest.mark.parametrize(("name", "way"), WORDS)
def test_what_a_plan_says_in_words(tmp_path: Path, name: str, way: str) -> None:
    assert words(tmp_path, name, way).split() == WORDS[name, way].split()
