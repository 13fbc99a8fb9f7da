"""Injuries of the control file."""

from __future__ import annotations

import struct
from dataclasses import replace

from tests.trust import layout
from tests.trust.injuries import injury
from tests.trust.layout import CONTROL, DOCUMENTED, RELEASED, Struct
from tests.trust.scene import NotHereError, Scene

VERSION, CREATED, KEY, COUNT, RESERVED = 0, 4, 12, 28, 32


def partition_of(scene: Scene) -> int:
    """One that has been in use, if there is one."""
    used = [log.number for log in scene.cluster.logs if log.kept and log.records] or [0]
    return scene.rng.choice(used)


def current_of(scene: Scene, partition: int) -> int:
    """Which struct of a sound pair is in force: 0 or 1."""
    return scene.log(partition).pair.current


@injury("control file gone", "control-file-missing")
def gone(scene: Scene) -> str:
    scene.remove(CONTROL)
    return "removed"


@injury("control file cut", "control-file-size")
def cut(scene: Scene) -> str:
    data = scene.read(CONTROL)
    step = layout.info_size(scene.cluster.layout)
    sizes = [0, 1, 100, 127, 128, 128 + step // 2, 128 + step, len(data) - 1, len(data) - step // 2]
    size = scene.rng.choice([one for one in sizes if one < len(data)])
    scene.files[CONTROL] = data[:size]
    return f"to {size} of {len(data)} bytes"


@injury("control file extended with zeros", "control-file-extended", "control-file-size")
def extended(scene: Scene) -> str:
    """What release 0.13.2 does to a documented file (up to its own length), or any other length."""
    data = scene.read(CONTROL)
    more = 16 * len(scene.cluster.logs)
    if scene.cluster.layout == RELEASED or scene.rng.random() < 0.3:
        more = scene.rng.choice((1, 60, 76, 512, 4096))
    scene.files[CONTROL] = data + bytes(more)
    return f"by {more}"


@injury("junk behind the control file", "control-file-size")
def junk_behind(scene: Scene) -> str:
    scene.files[CONTROL] = scene.read(CONTROL) + scene.rng.randbytes(scene.rng.choice((1, 7, 31, 100)))
    return "appended"


@injury("wrong number of partitions", "control-file-size")
def wrong_count(scene: Scene) -> str:
    count = len(scene.cluster.logs)
    wrong = scene.rng.choice([one for one in (-1, 0, 1, count - 1, count + 1, 7, 2**31 - 1) if one != count])
    scene.patch(CONTROL, COUNT, struct.pack(">i", wrong))
    return f"{count} -> {wrong}"


@injury("version of the control file", "unknown-version", mends=True)
def version(scene: Scene) -> str:
    scene.flip(CONTROL, VERSION + 3)
    return "flipped"


@injury("reserved bytes of the control file", "reserved-not-zero", mends=True)
def reserved(scene: Scene) -> str:
    scene.patch(CONTROL, RESERVED + scene.rng.randrange(96), b"\x01")
    return "one of them"


@injury("bit in the control file's key", "segment-key")
def key(scene: Scene) -> str:
    scene.flip(CONTROL, KEY + scene.rng.randrange(16))
    return "flipped"


@injury("the control file of another cluster", "segment-key")
def of_another_cluster(scene: Scene) -> str:
    scene.files[CONTROL] = scene.sister.files()[CONTROL]
    return "put in its place"


@injury("stored partition id", "control-partition-id", mends=True)
def stored_id(scene: Scene) -> str:
    number = scene.rng.randrange(len(scene.cluster.logs))
    scene.patch(CONTROL, layout.info_offset(scene.cluster.layout, number), struct.pack(">i", number + 1))
    return f"of {number}"


def _break(scene: Scene, partition: int, *numbers: int) -> None:
    for number in numbers:
        place = layout.struct_offset(scene.cluster.layout, partition, number)
        scene.flip(CONTROL, place + scene.rng.randrange(20))


@injury("older struct", "control-struct-checksum", mends=True)
def older_struct(scene: Scene) -> str:
    number = partition_of(scene)
    _break(scene, number, 1 - current_of(scene, number))
    return f"of {number} flipped"


@injury("newer struct", "control-struct-checksum")
def newer_struct(scene: Scene) -> str:
    number = partition_of(scene)
    _break(scene, number, current_of(scene, number))
    return f"of {number} flipped"


@injury("both structs", "control-pair-checksum")
def pair(scene: Scene) -> str:
    number = partition_of(scene)
    _break(scene, number, 0, 1)
    return f"of {number} flipped"


@injury("a pair of zeros", "control-pair-checksum")
def zero_pair(scene: Scene) -> str:
    number = partition_of(scene)
    style = scene.cluster.layout
    scene.patch(CONTROL, layout.info_offset(style, number) + 4, bytes(layout.info_size(style) - 4))
    return f"of {number}"


@injury("a tie", "control-pair-tie")
def tie(scene: Scene) -> str:
    number = partition_of(scene)
    style, marked = scene.cluster.layout, scene.log(number).pair
    newer = marked.structs[marked.current]
    if style == RELEASED:
        other = replace(newer, low=newer.low + 1)
    elif newer.low >= 0:
        other = Struct(newer.session, newer.low - 1, newer.local + 1)
    else:
        raise NotHereError
    scene.patch(CONTROL, layout.struct_offset(style, number, 1 - marked.current), other.encode(style))
    return f"of {number}"


@injury("bit anywhere in the control file")
def anywhere(scene: Scene) -> str:
    place = scene.rng.randrange(max(1, len(scene.read(CONTROL))))
    scene.flip(CONTROL, place)
    return f"at {place}"


@injury("zeros over a part of the control file")
def zeroed(scene: Scene) -> str:
    data = scene.read(CONTROL)
    if len(data) < 200:
        raise NotHereError
    start = scene.rng.choice((0, 128, scene.rng.randrange(len(data) - 64)))
    scene.patch(CONTROL, start, bytes(min(len(data) - start, scene.rng.choice((16, 64, 512)))))
    return f"from {start}"


@injury("not assigned", "partition-not-assigned", mends=True)
def not_assigned(scene: Scene) -> str:
    """Taken away with its files kept: both structs are initial again."""
    if scene.cluster.layout == DOCUMENTED:
        raise NotHereError
    number = partition_of(scene)
    if not scene.log(number).kept:
        raise NotHereError
    scene.patch(
        CONTROL,
        layout.struct_offset(RELEASED, number, 0),
        Struct().encode(RELEASED) + Struct(sequence=0).encode(RELEASED),
    )
    return f"partition {number}"
