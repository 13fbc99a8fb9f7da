"""Which transactions are missing is one answer of every view, whatever lies between the segments of a partition.

The damage is drawn from a seed, at the ends of segments and in their names: torn tails, empty and short data files and copies
inside other segments, lost and renamed files, indexes alone, marks.  Nothing inside a segment is damaged, so that also who reads
only the ends of segments sees all of it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.builders import build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, idx, seg
from tests.memory import in_memory
from tests.repair.scenes import rewrite_mark
from tests.spark.reading import read
from tests.spark.streaming import Query
from waltzctl.engine.compare.compare import compare
from waltzctl.engine.compare.comparison import CompareOptions
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.inspect.dump import DumpedRecord, dump_records
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.stats.stats import StatsOptions, stats
from waltzctl.engine.storage.directory import open_storage
from waltzctl.engine.task_executor import LocalExecutor
from waltzctl.formats.segment import HEADER_SIZE, encode_entries

COUNT, SIZE = 40, 60
RECORDS = make_records(COUNT + 20, size=20)
"""Of 60 bytes each; a directory has the first 40, in segments of ten."""
FIRSTS = tuple(range(0, COUNT, 10))
MANY = 600
SEEDS = [*range(50), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50, MANY))]


class Damaged:
    """A partition that is being damaged; `told`: what was done."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng, self.told = root, rng, list[str]()
        build_directory(root, {0: [RECORDS[first : first + 10] for first in FIRSTS]}, local_low_water_mark=19)

    def there(self) -> int:
        """A segment whose data file is there, by the id in its name."""
        return self.rng.choice([int(one.stem) for one in sorted((self.root / "0").glob("*.seg"))])

    def tear(self) -> None:
        """A part of a record behind the last one, and entries of it and of what might follow."""
        first, listed = self.there(), self.rng.randrange(3)
        with seg(self.root, 0, first).open("ab") as data:
            end = data.tell()
            if end < HEADER_SIZE:
                return
            data.write(
                RECORDS[min(COUNT, first + (end - HEADER_SIZE) // SIZE)].encode()[: self.rng.choice((1, 33, 59))]
            )
        if idx(self.root, 0, first).exists():
            with idx(self.root, 0, first).open("ab") as index:
                index.write(encode_entries([end, end + 45][:listed]))
        self.told.append(f"torn tail in {first}, {listed} listed")

    def empty(self) -> None:
        """A data file without records, of a name that no other has."""
        first, size = self.rng.randrange(COUNT + 4), self.rng.choice((HEADER_SIZE, HEADER_SIZE, HEADER_SIZE, 0, 50))
        if seg(self.root, 0, first).exists() or idx(self.root, 0, first).exists():
            return
        os.truncate(write_segment(self.root / "0", [], first=first), size)
        self.told.append(f"{first} of {size} bytes")

    def inner(self) -> None:
        """Some records a second time, in a segment of their own."""
        first = self.rng.randrange(COUNT)
        if seg(self.root, 0, first).exists() or idx(self.root, 0, first).exists():
            return
        many = self.rng.randrange(1, 13)
        write_segment(self.root / "0", RECORDS[first : min(COUNT, first + many)])
        self.told.append(f"{first} again, up to {min(COUNT, first + many) - 1}")

    def drop(self) -> None:
        """A segment, its data file, or its index is lost."""
        first, what = self.there(), self.rng.choice((("seg", "idx"), ("seg",), ("seg",), ("idx",)))
        for path in (seg(self.root, 0, first), idx(self.root, 0, first)):
            if path.suffix[1:] in what:
                path.unlink(missing_ok=True)
        self.told.append(f"{first} without {what}")
        if not any((self.root / "0").glob("*.seg")):
            write_segment(self.root / "0", RECORDS[:10])

    def cut(self) -> None:
        """A data file loses its end, in front of a record or inside of one."""
        first, off = self.there(), self.rng.choice((60, 61, 59, 180, 230))
        size = seg(self.root, 0, first).stat().st_size
        os.truncate(seg(self.root, 0, first), max(HEADER_SIZE, size - off))
        self.told.append(f"{first} cut by {off}")

    def longer(self) -> None:
        """A segment goes on into the next one."""
        first, more = self.there(), self.rng.randrange(1, 14)
        write_segment(self.root / "0", RECORDS[first : min(COUNT, first + 10 + more)], first=first)
        self.told.append(f"{first} goes on by {more}")

    def listed(self) -> None:
        """An index without a data file."""
        first, many = self.rng.randrange(COUNT + 8), self.rng.randrange(1, 14)
        if seg(self.root, 0, first).exists() or idx(self.root, 0, first).exists():
            return
        entries = encode_entries([HEADER_SIZE + SIZE * place for place in range(many)])
        idx(self.root, 0, first).write_bytes(segment_header(0, first).encode() + entries)
        self.told.append(f"an index of {first} to {first + many - 1} alone")

    def too_long(self) -> None:
        """An index lists more than there is."""
        first, many = self.there(), self.rng.randrange(1, 12)
        if idx(self.root, 0, first).exists():
            with idx(self.root, 0, first).open("ab") as index:
                index.write(encode_entries([100_000 + SIZE * place for place in range(many)]))
            self.told.append(f"{many} entries more in {first}")

    def rename(self) -> None:
        """A segment has another name, with its index or without."""
        first, name, index = self.there(), self.rng.randrange(COUNT + 9), self.rng.random() < 0.5
        if seg(self.root, 0, name).exists() or idx(self.root, 0, name).exists():
            return
        for path in (seg, idx) if index else (seg,):
            if path(self.root, 0, first).exists():
                path(self.root, 0, first).rename(path(self.root, 0, name))
        self.told.append(f"{first} renamed to {name}{' with its index' if index else ''}")

    def mark(self) -> None:
        """Up to where all was durable once."""
        mark = self.rng.choice((-1, 9, 10, 30, COUNT - 1, COUNT, COUNT + 3))
        rewrite_mark(self.root, 0, mark)
        self.told.append(f"mark {mark}")


WAYS: tuple[Callable[[Damaged], None], ...] = (
    Damaged.tear,
    Damaged.tear,
    Damaged.empty,
    Damaged.empty,
    Damaged.inner,
    Damaged.drop,
    Damaged.cut,
    Damaged.longer,
    Damaged.listed,
    Damaged.too_long,
    Damaged.mark,
)


def draw(root: Path, seed: int) -> Damaged:
    """The directory of a seed; in every fifth one segment has another name."""
    rng = random.Random(f"losses.{seed}")
    damaged = Damaged(root, rng)
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4))):
        rng.choice(WAYS)(damaged)
    if seed % 5 == 4:
        damaged.rename()
    age(root)
    return damaged


def lost(told: Iterable[tuple[int | None, int | None]]) -> Counter[int]:
    """How often each id is said to be missing."""
    return Counter(number for first, many in told if first is not None for number in range(first, first + (many or 0)))


def of_findings(items: Iterable[object]) -> Counter[int]:
    return lost((one.transaction_id, one.missing) for one in items if isinstance(one, Finding))


def of_rows(rows: Iterable[dict[str, object]]) -> Counter[int]:
    return lost((row["transaction_id"], row["missing"]) for row in rows)  # type: ignore[misc]


def spans(found: Counter[int]) -> str:
    """Ids as text, to be read where two answers differ."""
    return " ".join(f"{number}x{many}" if many > 1 else str(number) for number, many in sorted(found.items()))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as path:
        yield path


def _opened(root: Path) -> list[Finding]:
    copy = root.with_name("opened")
    shutil.copytree(root, copy)
    with open_storage(copy) as storage:
        return [*storage.partition(0).findings]


def _compared(root: Path) -> list[Finding]:
    """With a copy of itself."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    items = compare([root, age(copy)], CompareOptions(), LocalExecutor(1))
    return [one for one in items if isinstance(one, Finding) and copy not in (one.path, *Path(one.path).parents)]


def _of_stream(root: Path, findings: Sequence[Finding]) -> Counter[int]:
    """What a stream tells, and what it may leave out.

    A torn tail behind the last record may be one which is just being written; and of records that are there a stream does not say
    that an index alone lists others under their ids.
    """
    rows = Query(root).run()
    last = max(int(one.stem) for one in (root / "0").glob("*.seg"))
    tails = of_findings(one for one in findings if one.code is Code.TORN_TAIL and one.segment == last)
    unlike = of_findings(one for one in findings if one.code is Code.INDEX_ORPHAN)
    delivered = {row["transaction_id"] for row in rows if row["data_length"] is not None}
    told = of_rows(row for row in rows if row["finding"])
    return (told | tails) + Counter({number: many for number, many in unlike.items() if number in delivered})


def _answers(root: Path) -> tuple[dict[str, str], str]:
    """The ids that each view says are missing, and those that verify does; where findings differ, these."""
    findings = [one for one in verify([root]) if isinstance(one, Finding)]
    found = {
        "dump": of_findings(dump_records(root)),
        "dump backwards": of_findings(dump_records(root, reverse=True)),
        "stats": of_findings(stats([root], StatsOptions(), LocalExecutor(1)).findings),
        "status": of_findings(storage_status(root).partitions[0].findings),
        "records": of_rows(read(root)),
        "records in small parts": of_rows(read(root, splitSize="300")),
    }
    if not any(one.code is Code.SEGMENT_NAME for one in findings):  # nodes, and who reads as they do, go by names
        found["node"] = of_findings(_opened(root))
        found["compare"] = of_findings(_compared(root))
        if not any(one.code is Code.SEGMENT_OVERLAP for one in findings):
            found["stream"] = _of_stream(root, findings)
    told = {view: spans(one) for view, one in found.items()}
    for size in ("128MiB", "300"):
        rows = Counter((row["code"], row["message"]) for row in read(root, view="findings", splitSize=size))
        verified = Counter((one.code.value, one.message) for one in findings)
        if rows != verified:
            told[f"findings in parts of {size}"] = f"{[*(rows - verified)]}, not {[*(verified - rows)]}"
    return told, spans(of_findings(findings))


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_missing_is_one_answer_of_every_view(seed: int, place: Path) -> None:
    damaged = draw(place / "d", seed)
    told, known = _answers(damaged.root)
    assert told == dict.fromkeys(told, known), damaged.told


def torn(root: Path, first: int, listed: int = 0) -> None:
    """A part of the record behind the last one of a segment, and entries of it and of what might follow."""
    with seg(root, 0, first).open("ab") as data, idx(root, 0, first).open("ab") as index:
        end = data.tell()
        index.write(encode_entries([end, end + 45][:listed]))
        data.write(RECORDS[first + (end - HEADER_SIZE) // SIZE].encode()[:33])


def alone(root: Path, first: int, many: int = 6, size: int = SIZE) -> None:
    """An index without a data file, of records of `size` bytes."""
    entries = encode_entries([HEADER_SIZE + size * place for place in range(many)])
    idx(root, 0, first).write_bytes(segment_header(0, first).encode() + entries)


def short(root: Path, first: int, entries: int = 0, size: int = SIZE) -> None:
    """A data file of 50 bytes, with an index of so many records of `size` bytes."""
    seg(root, 0, first).write_bytes(bytes(50))
    alone(root, first, entries, size)


def again(root: Path, first: int, stop: int) -> None:
    write_segment(root / "0", RECORDS[first:stop])


def drop(root: Path, first: int) -> None:
    seg(root, 0, first).unlink()
    idx(root, 0, first).unlink()


def _both(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    def made(root: Path) -> None:
        for step in steps:
            step(root)

    return made


BETWEEN: dict[str, tuple[Callable[[Path], None], Iterable[int]]] = {
    # a torn record at the end and an index alone that lists it, too
    "index alone from the torn id on": (_both(lambda d: torn(d, 30), lambda d: alone(d, 40)), range(40, 46)),
    "the same, and the torn one is listed": (_both(lambda d: torn(d, 30, 2), lambda d: alone(d, 40)), range(40, 46)),
    "index alone from the next id on": (_both(lambda d: torn(d, 30), lambda d: alone(d, 41)), range(40, 47)),
    "index alone over the torn id": (_both(lambda d: torn(d, 30), lambda d: alone(d, 39)), range(40, 45)),
    "index alone in a short one's": (_both(lambda d: short(d, 40, 6), lambda d: alone(d, 42)), range(40, 48)),
    "torn and acknowledged": (_both(lambda d: torn(d, 30), lambda d: rewrite_mark(d, 0, 40)), (40,)),
    # a file without a header in a longer segment
    "short in another": (lambda d: short(d, 5), ()),
    "short at the last id of another": (lambda d: short(d, 9), ()),
    "short in one that is torn": (_both(lambda d: torn(d, 0), lambda d: short(d, 5)), ()),
    "short in one that ends one id too early": (
        _both(lambda d: again(d, 0, 15), lambda d: drop(d, 10), lambda d: short(d, 12)), range(15, 20)
    ),
    "short behind the end of the one in front": (_both(lambda d: drop(d, 10), lambda d: short(d, 12)), range(10, 20)),
    "short in one that a third one ends inside of": (
        _both(lambda d: again(d, 0, 19), lambda d: again(d, 10, 12), lambda d: short(d, 15)), (19,)
    ),
    "short, and its index lists the same records": (lambda d: short(d, 5, 4), ()),
    "short, and its index lists others": (lambda d: short(d, 5, 4, SIZE + 1), range(5, 10)),
    "short at the end, in another": (lambda d: short(d, 35, 8), range(40, 43)),
    # a torn segment that stands in a longer one
    "torn in another": (_both(lambda d: again(d, 5, 8), lambda d: torn(d, 5)), ()),
    "torn in one that is torn further on": (
        _both(lambda d: again(d, 0, 12), lambda d: torn(d, 0), lambda d: drop(d, 10), lambda d: again(d, 5, 8),
              lambda d: torn(d, 5)), range(12, 20)
    ),
    # what a torn segment holds behind the end of another one with a name inside of it
    "inside of a torn one": (_both(lambda d: torn(d, 0), lambda d: again(d, 5, 8)), ()),
    "inside of the last one, which is torn": (_both(lambda d: torn(d, 30), lambda d: again(d, 35, 37)), ()),
    "up to the end of a torn one": (_both(lambda d: torn(d, 0), lambda d: again(d, 5, 10)), ()),
    "beyond the end of a torn one": (
        _both(lambda d: torn(d, 0), lambda d: drop(d, 10), lambda d: again(d, 5, 13)), range(13, 20)
    ),
    # a gap, and indexes alone in it
    "data lost": (lambda d: seg(d, 0, 10).unlink(), range(10, 20)),
    "index alone in a gap": (_both(lambda d: drop(d, 10), lambda d: alone(d, 12, 4)), range(10, 20)),
    "index alone behind a short one": (_both(lambda d: drop(d, 20), lambda d: short(d, 20), lambda d: alone(d, 22)),
                                       range(20, 30)),
}  # fmt: skip
"""What is done to a partition whose mark is 19, and which ids are missing then."""


@pytest.mark.turns(8)
@pytest.mark.parametrize("what", BETWEEN)
def test_what_stands_between_and_at_the_ends_of_segments(what: str, place: Path) -> None:
    """Every view tells each missing id once, and a stream hands on each record that is here once, whatever its batches."""
    root = Damaged(place / "d", random.Random(1)).root
    damage, missing = BETWEEN[what]
    damage(root)
    age(root)
    told, known = _answers(root)
    lists_others = what.endswith("lists others")  # of records that are here a stream does not say that others were
    if lists_others:
        told.pop("stream", None)
    assert known == spans(Counter(missing))
    assert told == dict.fromkeys(told, known)
    here = {
        (one.transaction_id, one.segment, one.offset) for one in dump_records(root) if isinstance(one, DumpedRecord)
    }
    rows = [row for row in Query(root, maxRecordsPerTrigger="3").run() if row["data_length"] is not None]
    ids = [row["transaction_id"] for row in rows]
    assert ids == sorted({number for number, *_ in here})
    assert {(row["transaction_id"], row["segment"], row["offset"]) for row in rows} <= here


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_of_one_id_tells_whether_it_is_missing(seed: int, place: Path) -> None:
    """Whatever else is missing; of the ids beside the borders of losses, and of segments by their names."""
    damaged = draw(place / "d", seed)
    root = damaged.root
    known = of_findings(verify([root]))
    names = [int(one.stem) for one in (root / "0").iterdir()]
    edges = {near for number in names for near in (number - 1, number)}
    edges |= {near for number in known for near in (number - 1, number + 1) if near not in known}
    able = sorted(one for one in edges | {*known} if one >= 0)
    wanted = damaged.rng.sample(able, k=min(8, len(able)))
    told = {}
    for number in wanted:
        found = of_findings(dump_records(root, first=number, last=number))
        rows = read(root, minTransactionId=number, maxTransactionId=number)
        told[number] = found[number], of_rows(row for row in rows if row["finding"])[number]
    assert told == {number: (known[number],) * 2 for number in wanted}, damaged.told


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("first", [3, 9, 29, 31, 39])
def test_a_stream_has_the_records_of_a_segment_in_which_an_empty_one_stands(
    place: Path, first: int, torn: bool
) -> None:
    """They were left out from the id of the empty one on, and told as missing."""
    damaged = Damaged(place / "d", random.Random(1))
    write_segment(damaged.root / "0", [], first=first)
    if torn:
        with seg(damaged.root, 0, first // 10 * 10).open("ab") as data:
            data.write(RECORDS[first // 10 * 10 + 10].encode()[:50])
    rows = Query(age(damaged.root)).run()
    assert [row["transaction_id"] for row in rows if row["data_length"] is not None] == [*range(COUNT)]
    assert of_rows(row for row in rows if row["finding"]) == Counter()


@pytest.mark.parametrize(("number", "missing"), [(39, 0), (40, 5), (43, 5), (44, 5), (45, 0)])
def test_a_read_in_front_of_the_name_of_the_last_segment_tells_what_is_missing_behind_its_records(
    place: Path, number: int, missing: int
) -> None:
    """It has 30 to 39, and its name is 45, which proves that there was more."""
    root = Damaged(place / "d", random.Random(1)).root
    for path in (seg, idx):
        path(root, 0, 30).rename(path(root, 0, 45))
    age(root)
    expected = Counter(range(40, 40 + missing))
    assert of_findings(dump_records(root, first=number, last=number)) == expected
    rows = read(root, minTransactionId=number, maxTransactionId=number)
    assert of_rows(row for row in rows if row["finding"]) == expected
