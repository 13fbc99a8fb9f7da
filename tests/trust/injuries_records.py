"""Injuries within data files: records, tails and headers."""

from __future__ import annotations

import struct
import zlib

from tests.trust import layout
from tests.trust.injuries import injury
from tests.trust.layout import HEADER_SIZE, sealed
from tests.trust.scene import NotHereError, Scene, Segment

ID, REQUEST, HEADER, LENGTH, DATA_SUM, DATA = 0, 8, 24, 28, 32, 36


def rebuilt(scene: Scene, segment: Segment, records: list[bytes], *, index: bool) -> None:
    """A data file of other records behind its own header, and an index that agrees with them."""
    scene.files[segment.data] = scene.read(segment.data)[:HEADER_SIZE] + b"".join(records)
    if index and segment.index in scene.files:
        scene.files[segment.index] = scene.read(segment.index)[:HEADER_SIZE] + layout.entries(layout.offsets(records))


def true_records(scene: Scene, segment: Segment) -> list[bytes]:
    return list(scene.log(segment.partition).records[segment.first : segment.end])


@injury("bit in a record", "record-checksum", "record-length", "record-order", "torn-tail", mends=True, weight=3)
def flipped(scene: Scene) -> str:
    segment = scene.segment(records=1)
    number = scene.record(segment)
    start, stop = scene.span(segment, number)
    place = scene.rng.choice((start + 7, start + 20, start + 26, start + 31, start + 34, stop - 2, stop - 5))
    scene.flip(segment.data, place)
    return f"{segment.data}: {number} at +{place - start}"


@injury("bit in the middle", "record-checksum", "record-length", "record-order", mends=True)
def middle(scene: Scene) -> str:
    segment = scene.segment(records=3)
    number = scene.record(segment, inner=True)
    scene.flip(segment.data, scene.span(segment, number)[0] + HEADER)
    return f"{segment.data}: {number}"


@injury("several records", "record-checksum", "record-length", "record-order", "torn-tail", mends=True)
def several(scene: Scene) -> str:
    segment = scene.segment(records=4)
    chosen = sorted(scene.rng.sample(range(segment.first, segment.end), scene.rng.randrange(2, min(segment.count, 6))))
    for number in chosen:
        start, stop = scene.span(segment, number)
        scene.flip(segment.data, scene.rng.randrange(start, stop))
    return f"{segment.data}: {chosen}"


@injury("lengths that lie", "record-length", "record-checksum", "torn-tail", mends=True)
def lying_length(scene: Scene) -> str:
    segment = scene.segment(records=1)
    number = scene.record(segment)
    length = scene.rng.choice((-1, -(2**31), 0, 5, 2**20, 2**31 - 1))
    start, stop = scene.span(segment, number)
    if length == stop - start - 40:
        raise NotHereError
    scene.patch(segment.data, start + LENGTH, struct.pack(">i", length))
    return f"{segment.data}: {number} says {length}"


@injury("lying length in the middle", "record-length", mends=True)
def negative_length(scene: Scene) -> str:
    segment = scene.segment(records=3)
    number = scene.record(segment, inner=True)
    scene.patch(segment.data, scene.span(segment, number)[0] + LENGTH, struct.pack(">i", -2))
    return f"{segment.data}: {number}"


@injury("range of zeros", mends=True)
def zeros(scene: Scene) -> str:
    segment = scene.segment(records=2)
    data = scene.read(segment.data)
    start = scene.rng.randrange(HEADER_SIZE, len(data) - 8)
    length = min(len(data) - start, scene.rng.choice((8, 40, 100, 512, 4096)))
    scene.patch(segment.data, start, bytes(length))
    return f"{segment.data}: {length} from {start}"


@injury("range of junk", mends=True)
def junk(scene: Scene) -> str:
    segment = scene.segment(records=2)
    data = scene.read(segment.data)
    start = scene.rng.randrange(HEADER_SIZE, len(data) - 8)
    length = min(len(data) - start, scene.rng.choice((8, 40, 100, 512)))
    scene.patch(segment.data, start, scene.rng.randbytes(length))
    return f"{segment.data}: {length} from {start}"


def _with_id(scene: Scene, segment: Segment, number: int, wrong: int) -> None:
    """The record as it is, but for its id and the checksum over everything."""
    start, stop = scene.span(segment, number)
    body = struct.pack(">q", wrong) + scene.read(segment.data)[start + 8 : stop - 4]
    scene.patch(segment.data, start, body + struct.pack(">I", zlib.crc32(body)))


@injury("wrong id, right checksums", "record-order", "torn-tail", "record-checksum", mends=True, weight=2)
def wrong_id(scene: Scene) -> str:
    segment = scene.segment(records=1)
    number = scene.record(segment)
    wrong = scene.rng.choice(
        [one for one in (number + 100, number + 1, number - 1, number + 2, 0, 2**40) if one != number]
    )
    if wrong < 0:
        raise NotHereError
    _with_id(scene, segment, number, wrong)
    return f"{segment.data}: {number} says {wrong}"


@injury("wrong id in the middle", "record-order", mends=True)
def wrong_id_inside(scene: Scene) -> str:
    segment = scene.segment(records=3)
    number = scene.record(segment, inner=True)
    _with_id(scene, segment, number, number + 100)
    return f"{segment.data}: {number} says {number + 100}"


@injury("several wrong ids", "record-order", "torn-tail", "record-checksum", mends=True)
def wrong_ids(scene: Scene) -> str:
    segment = scene.segment(records=5)
    start = scene.rng.randrange(segment.first, segment.end - 2)
    step = scene.rng.choice((1, 100, -1))
    chosen = range(start, min(segment.end, start + scene.rng.randrange(2, 5)))
    if start + step < 0:
        raise NotHereError
    for number in chosen:
        _with_id(scene, segment, number, number + step)
    return f"{segment.data}: {list(chosen)} say {step:+}"


@injury("data checksum", "data-checksum", mends=True)
def data_checksum(scene: Scene) -> str:
    """The record is intact, its data is not what the client computed the checksum of."""
    segment = scene.segment(records=1)
    number = scene.record(segment)
    start, stop = scene.span(segment, number)
    if stop - start == 40:
        raise NotHereError
    old = scene.read(segment.data)[start:stop]
    body = old[:DATA_SUM] + struct.pack(">I", zlib.crc32(old[DATA:-4]) ^ 1) + old[DATA:-4]
    scene.patch(segment.data, start, body + struct.pack(">I", zlib.crc32(body)))
    return f"{segment.data}: {number}"


@injury("a record twice", "record-order", "segment-overlap", mends=True)
def twice(scene: Scene) -> str:
    segment = scene.segment(records=2)
    records = true_records(scene, segment)
    place = scene.rng.randrange(len(records))
    records.insert(scene.rng.choice((place, place + 1)), records[place])
    rebuilt(scene, segment, records, index=scene.rng.random() < 0.5)
    return f"{segment.data}: {segment.first + place}"


@injury("two forms of a record", "record-order", "segment-overlap")
def two_forms(scene: Scene) -> str:
    segment = scene.segment(records=2)
    records = true_records(scene, segment)
    place = scene.rng.randrange(len(records))
    other = sealed(segment.first + place, (7, 7, segment.partition, 7), 7, b"another", zlib.crc32(b"another"))
    records.insert(scene.rng.choice((place, place + 1)), other)
    rebuilt(scene, segment, records, index=scene.rng.random() < 0.5)
    return f"{segment.data}: {segment.first + place}"


@injury("records left out", "record-order", "segment-gap", mends=True)
def left_out(scene: Scene) -> str:
    segment = scene.segment(records=3)
    records = true_records(scene, segment)
    start = scene.rng.randrange(0, len(records) - 2)
    del records[start : start + scene.rng.randrange(1, 3)]
    rebuilt(scene, segment, records, index=scene.rng.random() < 0.5)
    return f"{segment.data}: from {segment.first + start}"


@injury("neighbours change places", "record-order", mends=True)
def changed_places(scene: Scene) -> str:
    segment = scene.segment(records=4)
    records = true_records(scene, segment)
    place = scene.rng.randrange(1, len(records) - 2)
    records[place], records[place + 1] = records[place + 1], records[place]
    rebuilt(scene, segment, records, index=scene.rng.random() < 0.5)
    return f"{segment.data}: {segment.first + place}"


@injury("cut data file", mends=True, weight=3)
def cut(scene: Scene) -> str:
    """At every kind of boundary."""
    segment = scene.segment()
    data = scene.read(segment.data)
    sizes = [0, 1, 60, 103, 127, 128]
    if segment.count:
        start, stop = scene.span(segment, scene.record(segment))
        sizes += [start, start, start + 1, start + 35, start + 36, (start + stop) // 2, stop - 4, stop - 1, stop]
    size = scene.rng.choice([one for one in sizes if one < len(data)])
    scene.files[segment.data] = data[:size]
    return f"{segment.data}: to {size} of {len(data)}"


@injury("torn tail", "torn-tail", mends=True)
def torn(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last, records=1)
    start, stop = scene.span(segment, segment.end - 1)
    size = scene.rng.randrange(start + 1, stop)
    scene.files[segment.data] = scene.read(segment.data)[:size]
    return f"{segment.data}: to {size}"


@injury("end of the log gone")
def end_gone(scene: Scene) -> str:
    """Records and their entries, as if they had never been: only a mark can tell."""
    segment = scene.segment(lambda one: one.last, records=1)
    number = scene.record(segment)
    scene.files[segment.data] = scene.read(segment.data)[: scene.span(segment, number)[0]]
    index = scene.read(segment.index)
    scene.files[segment.index] = index[: HEADER_SIZE + 8 * (number - segment.first)]
    return f"{segment.data}: from {number}"


@injury("data gone below a checkpoint", "durable-missing", mends=True)
def below_checkpoint(scene: Scene) -> str:
    """Index and data were synced at it; the index still has its entries, the data file ends before."""
    segment = scene.segment(lambda one: one.last and one.first < 1000 < one.end)
    number = scene.rng.randint(max(segment.first, 990), 999)
    scene.files[segment.data] = scene.read(segment.data)[: scene.span(segment, number)[0]]
    return f"{segment.data}: from {number}"


@injury("end below the mark", "acknowledged-missing", mends=True)
def below_mark(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last and one.count > 0 and scene.log(one.partition).mark >= one.first)
    mark = scene.log(segment.partition).mark
    scene.files[segment.data] = scene.read(segment.data)[: scene.span(segment, mark)[0]]
    scene.files[segment.index] = scene.read(segment.index)[: HEADER_SIZE + 8 * (mark - segment.first)]
    return f"{segment.data}: from {mark}"


@injury("zeros behind the data", "torn-tail", "segment-overlap", "record-checksum")
def zeros_behind(scene: Scene) -> str:
    segment = scene.segment()
    many = scene.rng.choice((1, 3, 36, 40, 100, 512, 4096, 70_000))
    if scene.rng.random() < 0.04:
        many = scene.rng.choice((1 << 20, 16 << 20))
    scene.files[segment.data] = scene.read(segment.data) + bytes(many)
    return f"{segment.data}: {many}"


@injury("junk behind the data", "torn-tail", "segment-overlap", "record-checksum", "record-length")
def junk_behind(scene: Scene) -> str:
    segment = scene.segment()
    many = scene.rng.choice((1, 3, 36, 40, 100, 512, 4096))
    scene.files[segment.data] = scene.read(segment.data) + scene.rng.randbytes(many)
    return f"{segment.data}: {many}"


@injury("one record more than its index has", "index-short", "segment-overlap")
def one_more(scene: Scene) -> str:
    """What a kill between data and index leaves."""
    segment = scene.segment(lambda one: one.last)
    number = segment.end
    data = b"written, not yet indexed"
    record = sealed(number, (5, 5, segment.partition, number), 1, data, zlib.crc32(data))
    scene.files[segment.data] = scene.read(segment.data) + record
    scene.truth[segment.partition][number] = record
    return f"{segment.data}: {number}"


def _header(scene: Scene, what: str, offset: int, *, seg: float = 0.5, idx: float = 0.2) -> str:
    """Flip a bit of a header field of the data file, the index or both."""
    segment = scene.any_segment()
    roll = scene.rng.random()
    names = [segment.data] if roll < seg else [segment.index] if roll < seg + idx else [segment.data, segment.index]
    bit = bytes([1 << scene.rng.randrange(3)])
    for one in names:
        old = scene.read(one)
        if len(old) <= offset:
            raise NotHereError
        scene.patch(one, offset, bytes([old[offset] ^ bit[0]]))
    return f"{what} of {' and '.join(names)}"


@injury("version of a segment", "unknown-version", mends=True)
def segment_version(scene: Scene) -> str:
    return _header(scene, "version", 3)


@injury("time of a segment")
def segment_created(scene: Scene) -> str:
    return _header(scene, "created", 10)


@injury("key of a segment", "segment-key", "index-header")
def segment_key(scene: Scene) -> str:
    return _header(scene, "key", 12 + scene.rng.randrange(16))


@injury("partition of a segment", "segment-partition", "index-header")
def segment_partition(scene: Scene) -> str:
    return _header(scene, "partition", 31)


@injury("first id of a segment", "segment-name", "index-header")
def segment_first(scene: Scene) -> str:
    return _header(scene, "first id", scene.rng.choice((38, 39)))


@injury("reserved bytes of a segment", "reserved-not-zero", mends=True)
def segment_reserved(scene: Scene) -> str:
    return _header(scene, "reserved", 40 + scene.rng.randrange(88))


@injury("header of zeros")
def header_zeroed(scene: Scene) -> str:
    segment = scene.segment()
    scene.patch(segment.data, 0, bytes(HEADER_SIZE))
    if scene.rng.random() < 0.3:
        scene.patch(segment.index, 0, bytes(HEADER_SIZE))
        return f"{segment.data} and its index"
    return segment.data
