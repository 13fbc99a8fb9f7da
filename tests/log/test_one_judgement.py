"""What is this log, and what is wrong with it: every reader over every damaged example, against what verify says.

The table beside this file (`one_judgement.txt`) pins where a reader differs from verify, line by line: what verify says and
the reader does not (``-``), what only the reader says (``+``), and what both say of the same place in other words (``~``).
Behind ``#`` stands why: what makes the reader differ on purpose.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden import golden_directories, needs_golden
from waltzctl.engine.compare.compare import compare
from waltzctl.engine.compare.comparison import CompareOptions
from waltzctl.engine.errors import WaltzError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.dump import dump_records, dump_segments
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.stats.stats import StatsOptions, stats
from waltzctl.engine.storage.directory import open_storage
from waltzctl.engine.task_executor import LocalExecutor

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TABLE = Path(__file__).with_suffix("").with_name("one_judgement.txt")
Words = tuple[str, str | None]
"""The sentence of a finding, and its remedy."""


def _verified(path: Path) -> Iterable[Finding]:
    return (one for one in verify([path]) if isinstance(one, Finding))


def _opened(path: Path) -> Iterable[Finding]:
    """What a node finds, which opens a directory and then mends what a crash left."""
    try:
        with open_storage(path) as storage:
            return storage.findings
    except WaltzError as error:
        return error.findings


def _dumped(path: Path) -> Iterable[Finding]:
    return (one for one in dump_records(path) if isinstance(one, Finding))


def _segments(path: Path) -> Iterable[Finding]:
    return (one for one in dump_segments(path) if isinstance(one, Finding))


def _counted(path: Path) -> Iterable[Finding]:
    return stats([path], StatsOptions(), LocalExecutor(1)).findings


def _compared(path: Path) -> Iterable[Finding]:
    """With a copy of itself."""
    other = path.with_name("copy")
    shutil.copytree(path, other)
    found = list(compare([path, other], CompareOptions(), LocalExecutor(1)))
    return (one for one in found if isinstance(one, Finding) and other not in (one.path, *Path(one.path).parents))


def _undecided(path: Path) -> Iterable[Finding]:
    """What recover leaves to a person; what it mends is no finding any more."""
    return plan_recover(path).plan.undecided


def _everything(_finding: Finding) -> bool:
    return True


def _loss(finding: Finding) -> bool:
    """Who reads records answers for those that are not there, and neither for the control file nor for what loses nothing."""
    return finding.severity is Severity.DAMAGE and not finding.code.startswith("control-")


def _by_ends(finding: Finding) -> bool:
    """Who looks at both ends of a segment does not see what is between them."""
    bodies = {Code.RECORD_CHECKSUM, Code.RECORD_LENGTH, Code.RECORD_ORDER, Code.DATA_CHECKSUM, Code.INDEX_ENTRY}
    return finding.code not in bodies and not finding.code.startswith("control-")


def _nothing(_finding: Finding) -> bool:
    """What recover mends is a step of its plan."""
    return False


def _same(words: Words, reference: Words) -> bool:
    return words == reference


def _and_why(words: Words, reference: Words) -> bool:
    """Who tells what it left alone says why behind the sentence, and the step that comes next, as one has been taken."""
    return words[0] == reference[0] or words[0].startswith(f"{reference[0]}; ")


@dataclass(frozen=True)
class Reader:
    """How a reader is asked, `about` which of verify's findings it has to tell as well, and whether its words are `alike`."""

    ask: Callable[[Path], Iterable[Finding]]
    about: Callable[[Finding], bool]
    alike: Callable[[Words, Words], bool] = _same


READERS: dict[str, Reader] = {
    "open": Reader(_opened, _everything),
    "dump": Reader(_dumped, _loss),
    "segments": Reader(_segments, _by_ends),
    "stats": Reader(_counted, _loss),
    "compare": Reader(_compared, _loss),
    "recover": Reader(_undecided, _nothing, _and_why),
}


def _place(finding: Finding, storage: Path) -> str:
    """Everything of a finding but its words."""

    def said(value: object) -> str:
        return "-" if value is None else str(value)

    path = str(Path(finding.path).relative_to(storage))
    where = f"{said(finding.partition)}/{said(finding.segment)}"
    span = (
        "-" if finding.offset is None and finding.length is None else f"{said(finding.offset)}+{said(finding.length)}"
    )
    return (
        f"{finding.code.value} {where} {finding.severity.value} id {said(finding.transaction_id)} at {span} in {path}"
    )


def _differences(mine: Sequence[Finding], theirs: Sequence[Finding], reader: Reader, storage: Path) -> Iterator[str]:
    """What `theirs` (of verify) and `mine` (of a reader) do not have in common."""
    own = [(_place(one, storage), one.message, one.remedy) for one in mine]
    reference = [(_place(one, storage), one.message, one.remedy) for one in theirs]
    here, there = Counter(place for place, *_ in own), Counter(place for place, *_ in reference)
    owed = Counter(_place(one, storage) for one in theirs if reader.about(one))
    yield from (f"- {place}" for place in sorted((owed - here).elements()))
    yield from (f"+ {place}" for place in sorted((here - there).elements()))
    for place, message, remedy in own:
        told = [words for where, *words in reference if where == place]
        if told and not any(reader.alike((message, remedy), (said, step)) for said, step in told):
            yield f"~ {place}"


def _table() -> dict[tuple[str, str], list[str]]:
    """The lines of the table by example and reader; what stands behind ``#`` is taken off."""
    found: dict[tuple[str, str], list[str]] = {}
    example = ""
    for line in TABLE.read_text().splitlines():
        text = line.partition("#")[0].rstrip()
        if text and not text.startswith(" "):
            example = text
        elif text:
            reader, _, difference = text.strip().partition(" ")
            found.setdefault((example, reader), []).append(difference.strip())
    return found


def _storages() -> dict[str, Path]:
    golden = [path for path in golden_directories() if path.parent.name == "crashed"]
    fixtures = {path.parent.name: path for path in sorted(FIXTURES.glob("*/storage"))}
    return fixtures | {f"golden/{path.name}": path for path in golden}


@pytest.mark.turns(8)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("example", _storages())
def test_readers_differ_from_verify_only_where_the_table_says(tmp_path: Path, example: str, reader: str) -> None:
    storage = tmp_path / "storage"
    shutil.copytree(_storages()[example], storage)
    reference = list(_verified(storage))
    try:
        asked = READERS[reader]
        found = list(_differences(list(asked.ask(storage)), reference, asked, storage))
    except WaltzError as error:
        found = [f"! {type(error).__name__}"]
    assert found == _table().get((example, reader), [])


def test_every_line_of_the_table_has_a_reason() -> None:
    for line in TABLE.read_text().splitlines():
        if line.startswith(" "):
            assert line.partition("#")[2].strip() not in ("", "drift"), line


@needs_golden
def test_every_line_of_the_table_is_of_an_example_that_is_there() -> None:
    assert {(example, reader) for example, reader in _table()} <= {
        (example, reader) for example in _storages() for reader in READERS
    }
