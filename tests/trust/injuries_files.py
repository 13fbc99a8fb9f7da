"""Injuries of whole files and directories: indexes, lost files, overlaps, stray names, special files."""

from __future__ import annotations

import struct
import zlib

from tests.trust import layout
from tests.trust.injuries import injury
from tests.trust.layout import HEADER_SIZE, RELEASED, sealed
from tests.trust.scene import NotHereError, Scene, Segment, Special


@injury("index gone", "index-missing", mends=True)
def index_gone(scene: Scene) -> str:
    segment = scene.segment()
    scene.remove(segment.index)
    return segment.index


@injury("index cut", "index-short", "index-header", mends=True)
def index_cut(scene: Scene) -> str:
    segment = scene.segment()
    data = scene.read(segment.index)
    sizes = [0, 1, 127, 128, 129, len(data) - 8, len(data) - 1, len(data) - 3]
    size = scene.rng.choice([one for one in sizes if 0 <= one < len(data)])
    scene.files[segment.index] = data[:size]
    return f"{segment.index}: to {size} of {len(data)}"


@injury("index without its last entries", "index-short", mends=True)
def index_short(scene: Scene) -> str:
    segment = scene.segment(records=2)
    many = scene.rng.randrange(1, segment.count)
    scene.files[segment.index] = scene.read(segment.index)[: -8 * many]
    return f"{segment.index}: {many}"


@injury("index too long", "index-long", mends=True)
def index_long(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last)
    more = [len(scene.read(segment.data)) + 50 * place for place in range(scene.rng.randrange(1, 4))]
    scene.files[segment.index] = scene.read(segment.index) + layout.entries(more)
    return f"{segment.index}: {len(more)} more"


@injury("zeros behind an index", "index-long", "index-entry")
def index_zeros(scene: Scene) -> str:
    segment = scene.segment()
    many = scene.rng.choice((1, 8, 64, 512, 4096, 12_000))
    scene.files[segment.index] = scene.read(segment.index) + bytes(many)
    return f"{segment.index}: {many}"


@injury("wrong entry", "index-entry", mends=True)
def index_entry(scene: Scene) -> str:
    segment = scene.segment(records=1)
    number = scene.record(segment)
    wrong = scene.rng.choice((0, -1, 127, 128 + segment.offsets[number - segment.first], 2**62))
    scene.patch(segment.index, HEADER_SIZE + 8 * (number - segment.first), struct.pack(">q", wrong))
    return f"{segment.index}: {number} at {wrong}"


@injury("bit in an index")
def index_bit(scene: Scene) -> str:
    segment = scene.segment()
    place = scene.rng.randrange(max(1, len(scene.read(segment.index))))
    scene.flip(segment.index, place)
    return f"{segment.index}: at {place}"


@injury("index header", "index-header", mends=True)
def index_header(scene: Scene) -> str:
    segment = scene.segment()
    scene.patch(segment.index, 12, bytes(28))
    return segment.index


@injury("another segment's index", "index-header", "index-short", "index-long", "index-entry", mends=True)
def index_of_another(scene: Scene) -> str:
    segment, other = scene.segment(), scene.any_segment()
    if segment.index == other.index or scene.read(segment.index) == scene.read(other.index):
        raise NotHereError
    scene.files[segment.index] = scene.read(other.index)
    return f"{other.index} in the place of {segment.index}"


@injury("every index of a partition gone", "index-missing", mends=True)
def indexes_gone(scene: Scene) -> str:
    number = scene.any_segment().partition
    names = [one.index for one in scene.segments() if one.partition == number and one.index in scene.files]
    scene.remove(*names)
    return f"partition {number}"


def _lost(scene: Scene, segment: Segment) -> str:
    what = scene.rng.choice(("both", "data", "data"))
    scene.remove(segment.data, *([segment.index] if what == "both" and segment.index in scene.files else []))
    return f"{segment.data}: {what}"


@injury("first segment gone", "segment-gap", "index-orphan", mends=True)
def first_gone(scene: Scene) -> str:
    return _lost(scene, scene.segment(lambda one: one.first == 0 and not one.last))


@injury("middle segment gone", "segment-gap", "index-orphan", mends=True)
def middle_gone(scene: Scene) -> str:
    return _lost(scene, scene.segment(lambda one: one.first > 0 and not one.last))


@injury("last segment gone", mends=True, weight=2)
def last_gone(scene: Scene) -> str:
    return _lost(scene, scene.segment(lambda one: one.last))


@injury("last data file gone, its index not", "index-orphan", mends=True)
def last_data_gone(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last and one.count > 0)
    scene.remove(segment.data)
    return segment.data


@injury("only data file torn within its header", mends=True)
def only_torn(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last and one.first == 0 and one.count > 0)
    scene.files[segment.data] = scene.read(segment.data)[: scene.rng.choice((0, 60, 103, 127))]
    return segment.data


@injury("every data file of a partition gone", "index-orphan", mends=True)
def data_gone(scene: Scene) -> str:
    number = scene.segment(records=1).partition
    scene.remove(*[one.data for one in scene.segments() if one.partition == number and one.data in scene.files])
    return f"partition {number}"


@injury("partition directory gone", "partition-directory-missing", mends=True)
def directory_gone(scene: Scene) -> str:
    number = scene.segment(lambda one: scene.log(one.partition).session >= 0).partition
    scene.remove_directory(number)
    return f"partition {number}"


@injury("partition directory emptied", "partition-empty", mends=True)
def directory_emptied(scene: Scene) -> str:
    number = scene.any_segment().partition
    scene.remove_directory(number)
    scene.files[str(number)] = Special("directory")
    return f"partition {number}"


@injury("interrupted roll-over", "segment-header-short", "index-orphan", mends=True)
def roll_over(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.last and one.count > 0)
    number = segment.end
    data, index = layout.name(segment.partition, number), layout.name(segment.partition, number, ".idx")
    head = layout.segment_header(scene.cluster.key, segment.partition, number)
    how = scene.rng.randrange(4)
    if how < 3:
        scene.files[data] = (b"", head[:60], bytes(90))[how]
    scene.files[index] = head if scene.rng.random() < 0.7 else head[:50]
    return f"{data}: {how}"


@injury("overlap, equal bytes", "segment-overlap", mends=True)
def overlap_equal(scene: Scene) -> str:
    """A segment holds the first records of the next one as well."""
    segment = scene.segment(lambda one: not one.last)
    log = scene.log(segment.partition)
    more = log.records[segment.end : segment.end + scene.rng.randrange(1, 6)]
    if not more:
        raise NotHereError
    records = [*log.records[segment.first : segment.end], *more]
    _rewrite(scene, segment, records)
    return f"{segment.data}: {len(more)} more"


@injury("overlap, other bytes", "segment-overlap")
def overlap_other(scene: Scene) -> str:
    """A truncation whose deletions did not reach the disk: what was cut stands behind what was written afterwards."""
    segment = scene.segment(lambda one: not one.last)
    log = scene.log(segment.partition)
    count = min(scene.rng.randrange(1, 6), len(log.records) - segment.end)
    behind = [one.data for one in scene.segments() if (one.partition, one.first) == (log.number, segment.end)]
    if count < 1 or not any(data in scene.files for data in behind):
        raise NotHereError  # what was never written would be the only record under its id, where nothing is overlapped
    more = [
        sealed(number, (3, 3, segment.partition, number), 0, b"cut away", zlib.crc32(b"cut away"))
        for number in range(segment.end, segment.end + count)
    ]
    _rewrite(scene, segment, [*log.records[segment.first : segment.end], *more])
    return f"{segment.data}: {count} more"


@injury("a segment that begins earlier", "segment-overlap")
def begins_earlier(scene: Scene) -> str:
    segment = scene.segment(lambda one: one.first > 0 and one.count > 0)
    log = scene.log(segment.partition)
    first = segment.first - 1
    if first in log.firsts:
        raise NotHereError
    records = log.records[first : segment.end]
    scene.remove(segment.data, segment.index)
    data, index = layout.segment(scene.cluster.key, segment.partition, first, records)
    scene.files[layout.name(segment.partition, first)] = data
    scene.files[layout.name(segment.partition, first, ".idx")] = index
    return f"{segment.data}: at {first}"


def _rewrite(scene: Scene, segment: Segment, records: list[bytes]) -> None:
    data, index = layout.segment(scene.cluster.key, segment.partition, segment.first, records)
    scene.files[segment.data], scene.files[segment.index] = data, index


# Strangers


def _stranger(scene: Scene, target: Segment, source: str, index: str) -> str:
    """Put a data file from elsewhere in the place of a segment; the index comes along, stays, or is gone."""
    how = scene.rng.choice(("data", "both", "data, no index"))
    tree = scene.files if source in scene.files else scene.sister.files()
    data, entries = tree.get(source), tree.get(index)
    if not isinstance(data, bytes) or not isinstance(entries, bytes) or data == scene.files.get(target.data):
        raise NotHereError
    scene.files[target.data] = data
    if how == "both":
        scene.files[target.index] = entries
    elif how != "data":
        scene.files.pop(target.index, None)
    return how


@injury("another partition's segment", "segment-partition", weight=2)
def of_another_partition(scene: Scene) -> str:
    target = scene.any_segment()
    source = scene.segment(lambda one: one.partition != target.partition and one.first == target.first)
    return f"{source.data} in the place of {target.data}: {_stranger(scene, target, source.data, source.index)}"


@injury("another cluster's segment", "segment-key", weight=2)
def of_another_cluster(scene: Scene) -> str:
    target = scene.any_segment()
    tree = scene.sister.files()
    data, index = tree[target.data], tree[target.index]
    how = scene.rng.choice(("data", "both", "data, no index"))
    scene.files[target.data] = data
    if how == "both":
        scene.files[target.index] = index
    elif how != "data":
        scene.files.pop(target.index, None)
    return f"{target.data}: {how}"


@injury("first segments of two partitions change places", "segment-partition")
def swapped(scene: Scene) -> str:
    first, second = scene.segment(lambda one: one.first == 0), scene.segment(lambda one: one.first == 0)
    if first == second:
        raise NotHereError
    names = [(first.data, second.data)]
    if scene.rng.random() < 0.4:
        names.append((first.index, second.index))
    for one, other in names:
        scene.files[one], scene.files[other] = scene.read(other), scene.read(one)
    return f"{first.data} and {second.data}, {'with' if len(names) == 2 else 'without'} indexes"


@injury("partitions change places", "segment-partition")
def partitions_swapped(scene: Scene) -> str:
    first, second = scene.any_segment().partition, scene.any_segment().partition
    if first == second:
        raise NotHereError
    moved = {}
    for name in [one for one in scene.files if one.split("/")[0] in (str(first), str(second)) and "/" in one]:
        number, _, rest = name.partition("/")
        moved[f"{second if number == str(first) else first}/{rest}"] = scene.files.pop(name)
    scene.files.update(moved)
    return f"{first} and {second}"


@injury("own header, another partition's records")
def foreign_body(scene: Scene) -> str:
    """The header was mended before, by somebody who asked nobody."""
    target = scene.segment()
    source = scene.segment(lambda one: one.partition != target.partition and one.count > 0)
    scene.files[target.data] = scene.read(target.data)[:HEADER_SIZE] + scene.read(source.data)[HEADER_SIZE:]
    if scene.rng.random() < 0.5:
        scene.files[target.index] = scene.read(target.index)[:HEADER_SIZE] + scene.read(source.index)[HEADER_SIZE:]
    return f"{source.data} in {target.data}"


@injury("torn header, then another's segment", weight=2)
def torn_then_foreign(scene: Scene) -> str:
    """The data file was lost, its index stayed, and a segment of another partition was copied there."""
    target = scene.segment(lambda one: one.last)
    source = scene.segment(lambda one: one.partition != target.partition and one.count > 0)
    scene.files[target.data] = scene.read(source.data)
    scene.files[target.index] = layout.segment_header(scene.cluster.key, target.partition, target.first)
    return f"{source.data} as {target.data}, behind an index without entries"


@injury("another's segment at the end", "segment-partition", "segment-key", "segment-name", weight=2)
def foreign_end(scene: Scene) -> str:
    """A file of another partition or cluster under the next name of a partition."""
    target = scene.segment(lambda one: one.last and one.count > 0)
    other = scene.rng.random() < 0.5
    source = scene.segment(lambda one: one.count > 0 and (other or one.partition != target.partition))
    tree = scene.sister.files() if other else scene.files
    names = layout.name(target.partition, target.end), layout.name(target.partition, target.end, ".idx")
    scene.files[names[0]] = tree[source.data]
    if scene.rng.random() < 0.6 and source.index in tree:
        scene.files[names[1]] = tree[source.index]
    return f"{source.data}{' of another cluster' if other else ''} as {names[0]}"


@injury("segment renamed", "segment-name", "segment-gap")
def renamed(scene: Scene) -> str:
    segment = scene.segment()
    first = scene.rng.choice((segment.first + 1, segment.first + 105, segment.end, max(segment.first - 1, 0)))
    names = layout.name(segment.partition, first), layout.name(segment.partition, first, ".idx")
    if names[0] in scene.files or names[1] in scene.files:
        raise NotHereError
    scene.files[names[0]] = scene.files.pop(segment.data)
    if segment.index in scene.files and scene.rng.random() < 0.7:
        scene.files[names[1]] = scene.files.pop(segment.index)
    return f"{segment.data} to {names[0]}"


@injury("two segments change names", "segment-name")
def names_changed(scene: Scene) -> str:
    first, second = scene.segment(), scene.segment()
    if first.partition != second.partition or first == second:
        raise NotHereError
    scene.files[first.data], scene.files[second.data] = scene.read(second.data), scene.read(first.data)
    if scene.rng.random() < 0.5:
        scene.files[first.index], scene.files[second.index] = scene.read(second.index), scene.read(first.index)
    return f"{first.data} and {second.data}"


@injury("segment twice, under another name", "segment-name")
def copied(scene: Scene) -> str:
    segment = scene.segment()
    first = scene.rng.choice((segment.first + 1, segment.first + 105, len(scene.log(segment.partition).records)))
    names = layout.name(segment.partition, first), layout.name(segment.partition, first, ".idx")
    if names[0] in scene.files or names[1] in scene.files or first == segment.first:
        raise NotHereError
    scene.files[names[0]] = scene.read(segment.data)
    if scene.rng.random() < 0.5:
        scene.files[names[1]] = scene.read(segment.index)
    return f"{segment.data} as {names[0]}"


STRAY = (
    "x.seg",
    "1.seg",
    "0.seg",
    "old.idx",
    "00000000000000000000.seg",
    "0000000000000000000.seg.bak",
    "-1.seg",
    "x.seg.seg",
)


@injury("stray copy", "unknown-file", "segment-stray", weight=2)
def stray_copy(scene: Scene) -> str:
    segment = scene.segment()
    name = f"{segment.partition}/{scene.rng.choice(STRAY)}"
    scene.files[name] = scene.read(segment.data)
    return f"{segment.data} as {name}"


@injury("stray: the only copy", "segment-stray", weight=2)
def stray_only(scene: Scene) -> str:
    """Records that stand under a stray name only."""
    segment = scene.segment(records=1)
    name = f"{segment.partition}/{scene.rng.choice(STRAY[:3])}"
    if name in scene.files:
        raise NotHereError
    scene.files[name] = scene.files.pop(segment.data)
    if scene.rng.random() < 0.5:
        scene.files.pop(segment.index, None)
    return f"{segment.data} to {name}"


@injury("files that belong to nothing", "unknown-file", mends=True)
def unknown(scene: Scene) -> str:
    number = scene.any_segment().partition
    name = scene.rng.choice((f"{number}/notes.txt", "notes.txt", f"{number}/.hidden", "00", f"{number}/a\nb\x1b[31m"))
    scene.files[name] = b"somebody left this here\n"
    return repr(name)


@injury("half-built file", "temporary-file", mends=True)
def half_built(scene: Scene) -> str:
    segment = scene.any_segment()
    name = scene.rng.choice((segment.data, segment.index, layout.CONTROL)) + ".waltzctl-tmp"
    scene.files[name] = scene.rng.randbytes(scene.rng.randrange(300))
    return name


@injury("directory beyond the partitions", "partition-not-assigned", weight=2)
def beyond(scene: Scene) -> str:
    number = scene.rng.choice((len(scene.cluster.logs), 7, 4000))
    segment = scene.segment()
    source = segment.partition
    own = scene.rng.random() < 0.5
    for one in [one for one in scene.files if one.startswith(f"{source}/")]:
        node = scene.files[one]
        if own and isinstance(node, bytes) and len(node) >= HEADER_SIZE:
            node = node[:28] + struct.pack(">i", number) + node[32:]
        scene.files[f"{number}/{one.split('/', 1)[1]}"] = node
    return f"{source} as {number}"


@injury("files of an absent partition", "partition-not-assigned", "partition-directory-missing")
def absent(scene: Scene) -> str:
    """A directory where the control file knows nothing of one."""
    gone = [log.number for log in scene.cluster.logs if not log.kept]
    if not gone or scene.cluster.layout != RELEASED:
        raise NotHereError
    data, index = layout.segment(scene.cluster.key, gone[0], 0, [])
    scene.files[layout.name(gone[0], 0)], scene.files[layout.name(gone[0], 0, ".idx")] = data, index
    return f"partition {gone[0]}"


SPECIALS = ("fifo", "directory", "link", "socket")


@injury("special file in the place of a segment", "special-file", weight=2)
def special_segment(scene: Scene) -> str:
    segment = scene.any_segment()
    name = scene.rng.choice((segment.data, segment.index))
    kind = scene.rng.choice(SPECIALS)
    scene.files[name] = Special(kind, "nowhere" if kind == "link" else "")
    scene.special = True
    return f"{kind} {name}"


@injury("special file of a new name", "special-file", weight=2)
def special_new(scene: Scene) -> str:
    segment = scene.any_segment()
    number = scene.rng.choice((len(scene.log(segment.partition).records), 500))
    name = scene.rng.choice(
        (
            layout.name(segment.partition, number),
            layout.name(segment.partition, number, ".idx"),
            f"{segment.partition}/x.seg",
            "9",
            str(len(scene.cluster.logs)),
        )
    )
    if any(one == name or one.startswith(name + "/") for one in scene.files):
        raise NotHereError
    kind = scene.rng.choice(SPECIALS)
    scene.files[name] = Special(kind, "nowhere" if kind == "link" else "")
    scene.special = True
    return f"{kind} {name}"


@injury("special control file", "special-file")
def special_control(scene: Scene) -> str:
    kind = scene.rng.choice(SPECIALS)
    scene.files[layout.CONTROL] = Special(kind, "nowhere" if kind == "link" else "")
    scene.special = True
    return kind


@injury("data file behind a link")
def behind_link(scene: Scene) -> str:
    """An operator moved it to where there was room."""
    segment = scene.segment()
    scene.files["elsewhere.bin"] = scene.files.pop(segment.data)
    scene.files[segment.data] = Special("link", "../elsewhere.bin")
    scene.special = True
    return segment.data


@injury("special file in the place of a partition")
def special_partition(scene: Scene) -> str:
    number = scene.any_segment().partition
    scene.remove_directory(number)
    kind = scene.rng.choice(("fifo", "link", "socket", "file"))
    scene.files[str(number)] = b"a file" if kind == "file" else Special(kind, "nowhere" if kind == "link" else "")
    scene.special = True
    return f"{kind} {number}"
