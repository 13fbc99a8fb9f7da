"""What each kind of damage looks like from every side, word for word: verify, quick, status and the dumps.

`whole_answers.txt` has a section for each case of `test_codes`, with the lines that a sound directory does not have
(which has a section of its own).  Where an answer is meant to change, ``python -m tests.inspect.test_whole_answers`` writes the
file anew, and the difference is read line by line.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, with_marks, write_segment
from tests.inspect import test_vouching
from tests.inspect.helpers import age, run, seg
from tests.inspect.test_codes import CASES, Case, build
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.inspect.dump import (
    DumpedRecord,
    IndexEntry,
    dump_control,
    dump_index,
    dump_records,
    dump_segments,
)
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verification import ManifestRequest
from waltzctl.formats.control import CONTROL_FILE_NAME, FLAG_AVAILABLE, Layout, decode_control

WRITTEN = Path(__file__).with_name("whole_answers.txt")
NEW_EVERY_TIME = {"interrupted repair"}
"""What is told of these has a time and a number in it."""
OF_FINDINGS = ("status", "exit_status_name", "damage", "repairable", "notes")
"""What a summary says of the findings; `test_codes` compares it."""


def said(one: Finding) -> str:
    """A finding as one line."""
    place = "/".join("-" if each is None else str(each) for each in (one.partition, one.segment, one.transaction_id))
    extent = "" if one.offset is None else f" at {one.offset}"
    extent += "" if one.length is None else f"+{one.length}"
    extent += "" if one.missing is None else f" missing {one.missing}"
    remedy = "" if one.remedy is None else f" [{one.remedy}]"
    return f"{one.severity} {one.code} {one.path} {place}{extent}: {one.message}{remedy}"


def values(one: object, *without: str) -> str:
    """A value's fields as one line."""
    shown = ((each.name, getattr(one, each.name)) for each in fields(one) if each.name not in without)  # type: ignore[arg-type]
    return " ".join(f"{name}={value}" for name, value in shown if value is not None)


def items(found: Iterable[object]) -> Iterator[str]:
    """Findings as lines, and what stands between them in numbers."""
    numbers: list[str] = []
    for one in found:
        if isinstance(one, Finding):
            if numbers:
                yield spans(numbers)
            numbers = []
            yield said(one)
        elif isinstance(one, DumpedRecord):
            numbers.append(f"{one.partition}:{one.transaction_id}@{one.offset}")
        elif isinstance(one, IndexEntry):
            numbers.append(f"{one.partition}:{one.transaction_id}={one.offset}")
    if numbers:
        yield spans(numbers)


def spans(numbers: list[str]) -> str:
    return f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"


def views(storage: Path) -> Iterator[tuple[str, str]]:
    """Every line, with the name of who says it in front."""
    for name, options in (("verify", {}), ("quick", {"quick": True}), ("sample", {"sample": 0.6})):
        findings, summary = run(storage, **options)
        yield (
            f"{name} in all",
            values(summary, *OF_FINDINGS, "complete", "elapsed_seconds", "manifest", "released_starts"),
        )
        yield from ((name, said(one)) for one in findings)
    status = storage_status(storage)
    yield "status", values(status, "path", "partitions", "findings")
    yield from (("status", values(one, "last_written", "findings")) for one in status.partitions)
    yield from (("why", said(one)) for each in (status, *status.partitions) for one in each.findings)
    for item in dump_segments(storage):
        yield ("about", said(item)) if isinstance(item, Finding) else ("segments", values(item))
    for name, options in (
        ("records", {}),
        ("backwards", {"reverse": True}),
        ("records 13 to 17", {"first": 13, "last": 17}),
        ("backwards 13 to 17", {"first": 13, "last": 17, "reverse": True}),
    ):
        yield from ((name, line) for line in items(dump_records(storage, data=False, **options)))  # type: ignore[arg-type]
    yield from (("index", line) for line in items(dump_index(storage)))
    if (storage / "waltz-storage.ctl").exists():
        control = dump_control(storage)
        yield "control", values(control, "partitions", "findings")
        yield from (("control", said(one)) for one in control.findings)


Answers = dict[str, list[str]]


def answers(storage: Path) -> Answers:
    """The lines of each view, with names in short."""
    found: Answers = {}
    for view, line in views(age(storage)):
        found.setdefault(view, []).append(shortened(line, storage))
    return found


def shortened(line: str, storage: Path) -> str:
    return re.sub(r"\b0{9,}([0-9]+)", r"\1", line.replace(f"{storage}/", "").replace(str(storage), "DIR"))


def told_of(case: Case, storage: Path, sound: Answers) -> Answers:
    """The lines of a case that a sound directory does not have."""
    build(storage, case.layout)
    case.damage(storage)
    other = {
        view: [line for line in lines if line not in sound.get(view, ())] for view, lines in answers(storage).items()
    }
    return {view: lines for view, lines in other.items() if lines}


def block(name: str, told: Answers) -> list[str]:
    """A section of the file: views that say the same stand together, and a finding has a number that later stands for it."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for view, lines in told.items():
        alike.setdefault(tuple(lines), []).append(view)
    findings: dict[str, str] = {}
    section = [f"== {name}"]
    for lines, together in alike.items():
        section.append(f"{', '.join(together)}:")
        for line in lines:
            if line.startswith(tuple(Severity)):
                known = findings.get(line)
                number = findings.setdefault(line, f"({len(findings) + 1})")
                section.append(f"  {known or f'{number} {line}'}")
            else:
                section.append(f"  {line}")
    return section


def sound_name(layout: Layout) -> str:
    return f"a sound directory, {layout.value}"


@pytest.fixture(scope="module")
def written() -> dict[str, list[str]]:
    """The sections of the file by their names."""
    blocks = [block.splitlines() for block in WRITTEN.read_text().strip().split("\n\n")]
    return {name.removeprefix("== "): [name, *lines] for name, *lines in blocks}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Answers]:
    return {layout: answers(build(tmp_path_factory.mktemp(layout.value) / "s", layout)) for layout in Layout}


@pytest.mark.parametrize("layout", list(Layout))
def test_a_sound_directory_says_this(
    sound: dict[Layout, Answers], written: dict[str, list[str]], layout: Layout
) -> None:
    name = sound_name(layout)
    assert block(name, sound[layout]) == written[name]


@pytest.mark.turns(8)
@pytest.mark.parametrize("case", [one for one in CASES if one.name not in NEW_EVERY_TIME], ids=lambda one: one.name)
def test_damage_says_this_from_every_side(
    tmp_path: Path, sound: dict[Layout, Answers], written: dict[str, list[str]], case: Case
) -> None:
    told = told_of(case, tmp_path / "s", sound[case.layout])
    assert block(case.name, told) == written.get(case.name, [])


# --- with a manifest ---------------------------------------------------------------------------------------------------------


def grown(storage: Path) -> None:
    """One record more in both partitions, and a segment more in one."""
    write_segment(storage / "0", make_records(1, first=30))
    write_segment(storage / "2", make_records(13, partition=2)[10:], partition=2)
    mark_risen(storage)


def mark_risen(storage: Path) -> None:
    change_struct(storage, 2, low_water_mark=6, local_low_water_mark=6)


def mark_fell(storage: Path) -> None:
    change_struct(storage, 2, low_water_mark=4)


def flags_changed(storage: Path) -> None:
    change_struct(storage, 1, flags=FLAG_AVAILABLE | 4)


def change_struct(storage: Path, partition: int, **changes: int) -> None:
    path = storage / CONTROL_FILE_NAME
    control = decode_control(path.read_bytes())
    infos = [with_marks(one, **changes) if one.partition == partition else one for one in control.partitions]
    path.write_bytes(replace(control, partitions=tuple(infos)).encode())


def began(storage: Path) -> None:
    """A partition in which nothing was, an unknown one, and names that only look like a partition's."""
    for name in ("1", "4", "x", "01", "\N{SUPERSCRIPT TWO}"):
        (storage / name).mkdir()
        write_segment(storage / name, make_records(1), first=0)
    shutil.copy(seg(storage, 0, 0), seg(storage, 0, 5))


HARMS = [*test_vouching.HARMS, grown, mark_risen, mark_fell, flags_changed, began]


def compared(storage: Path, manifest: Path, harm: Callable[[Path], object]) -> list[str]:
    """What verify says of a directory that is no longer as its manifest says; without what it would say of it anyway."""
    build_directory(storage, {0: 30, 2: 12}, per_segment=10, local_low_water_mark=5, num_partitions=4)
    assert run(age(storage), manifest=ManifestRequest(manifest))[1].manifest == "written"
    harm(storage)
    findings, summary = run(age(storage), manifest=ManifestRequest(manifest))
    lines = [shortened(said(one), storage) for one in findings if one.code.startswith("manifest-")]
    return [f"== {harm.__name__}, and a manifest", f"{summary.manifest}:", *(f"  {line}" for line in lines)]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_directory_that_is_not_as_its_manifest_says_says_this(
    tmp_path: Path, written: dict[str, list[str]], harm: Callable[[Path], object]
) -> None:
    told = compared(tmp_path / "s", tmp_path / "manifest", harm)
    assert told == written[told[0].removeprefix("== ")]


def main() -> None:
    """Write the file anew."""
    with tempfile.TemporaryDirectory() as place:
        sound = {layout: answers(build(Path(place) / layout.value, layout)) for layout in Layout}
        blocks = [block(sound_name(layout), told) for layout, told in sound.items()]
        for number, case in enumerate(one for one in CASES if one.name not in NEW_EVERY_TIME):
            blocks.append(block(case.name, told_of(case, Path(place) / str(number) / "s", sound[case.layout])))
        for harm in HARMS:
            (there := Path(place) / harm.__name__).mkdir()
            blocks.append(compared(there / "s", there / "manifest", harm))
    WRITTEN.write_text("\n\n".join("\n".join(lines) for lines in blocks) + "\n")


if __name__ == "__main__":
    main()
