"""FIFOs, sockets, devices, directories and dead links where files belong: named at once, never opened, never replaced."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.builders import build_directory, digest
from tests.cli.running import invoke, run
from waltzctl.engine.durable.disk import open_for_reading
from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.errors import SpecialFileError
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import index_name, segment_name

SEGMENT, INDEX = f"0/{segment_name(20)}", f"0/{index_name(20)}"
PLACES = (CONTROL_FILE_NAME, SEGMENT, INDEX)


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """What waits for the other end of a FIFO would wait for ever: fail instead."""

    def bark(_: int, __: FrameType | None) -> None:
        raise AssertionError("it waits for the other end of a FIFO")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_socket(path: Path) -> None:
    short = Path(os.path.relpath(path))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short if len(str(short)) < len(str(path)) else path))


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a directory": os.mkdir,
    "a character device": make_device,
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "s", {0: 60, 1: 20}, per_segment=20, size=10)


def put(storage: Path, place: str, kind: str = "a FIFO") -> Path:
    path = storage / place
    path.unlink()
    KINDS[kind](path)
    return path


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_and_status_name_it_once(storage: Path, place: str, kind: str) -> None:
    """As damage, or as repairable where it stands in an index's place, with what it is."""
    path = put(storage, place, kind)
    for arguments in ((), ("--quick",)):
        answer = invoke("verify", storage, "--format", "ndjson", *arguments)
        (found,) = [one for one in answer.only("finding") if one["code"] == "special-file"]
        assert found["path"] == str(path)
        assert kind in found["message"]
        assert found["severity"] == ("repairable" if place == INDEX else "damage")
        assert answer.status == (3 if place == INDEX else 4)
        others = {one["code"] for one in answer.only("finding")} - {"special-file"}
        assert others == ({"segment-gap"} if place == SEGMENT else set())
    assert invoke("status", storage).status == answer.status
    assert special_kind(path) == kind


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("append", "@", "--partition", "0"),
    ("rebuild-index", "@", "--yes"),
    ("rebuild-index", "@", "--all", "--yes"),
    ("truncate", "@", "--partition", "0", "--after", "50", "--yes", "--allow-data-loss"),
    ("recover", "@", "--yes", "--allow-data-loss"),
    ("recover", "@", "--from", "OTHER", "--yes"),
    ("recover", "OTHER", "--from", "@", "--yes"),
    ("dump", "@"),
    ("dump", "@/PLACE"),
    ("verify", "@/PLACE"),
    ("verify", "OTHER", "--resume", "@/PLACE"),
    ("compare", "@", "OTHER"),
    ("stats", "@"),
    ("salvage", "@", "--to", "NEW"),
    ("dump", "OTHER", "--what", "control", "-o", "NEW"),
)


@pytest.mark.turns(10)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_waits_for_a_fifo_or_replaces_it(
    storage: Path, tmp_path: Path, place: str, command: tuple[str, ...]
) -> None:
    """And no command opens it: whoever wants to write into it finds that nobody reads."""
    other = Path(shutil.copytree(storage, tmp_path / "other"))
    os.truncate(other / SEGMENT, 300)
    path = put(storage, place)
    names = {"@": str(storage), "OTHER": str(other), "NEW": str(tmp_path / "new")}
    words = [names.get(word, word.replace("@", str(storage)).replace("PLACE", place)) for word in command]
    opened = threading.Event()

    def write_into() -> None:
        with open(path, "wb"):
            opened.set()

    writer = threading.Thread(target=write_into, daemon=True)
    writer.start()
    invoke(*words, given="a line\n")
    assert not opened.is_set()
    assert stat.S_ISFIFO(os.lstat(path).st_mode)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the writer go, also if it has not come to its open yet
    writer.join()
    os.close(reader)


@pytest.mark.parametrize("place", [SEGMENT, INDEX])
def test_a_node_closes_the_partition_and_serves_the_others(storage: Path, place: str) -> None:
    """Nothing in it is changed, and the finding says why."""
    path = put(storage, place)
    before = {name: value for name, value in digest(storage / "0").items() if name != path.name}
    with StorageDirectory.open(storage) as opened:
        assert opened.partition(0).quarantined
        assert [one.code for one in opened.partition(0).findings if one.path == path] == ["special-file"]
        assert not opened.partition(1).quarantined
    assert {name: value for name, value in digest(storage / "0").items() if name != path.name} == before


def test_a_name_that_changes_hands_after_it_was_looked_at_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened is looked at again."""
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    look = os.stat

    def look_and_lose(name: Path, **options: bool) -> os.stat_result:
        found = look(name, **options)
        if name == path:
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", look_and_lose)
    with pytest.raises(SpecialFileError, match="a FIFO, not a regular file"):
        open_for_reading(path)


# --- -o FILE and its like --------------------------------------------------------------------------------------------


def test_a_plain_file_is_replaced_and_a_link_stays(storage: Path, tmp_path: Path) -> None:
    """The file behind the links is the one that is whole; the old one is untouched in whoever's hands it is."""
    target, first, second = tmp_path / "target", tmp_path / "first", tmp_path / "second"
    target.write_text("before")
    os.link(target, tmp_path / "same")
    (tmp_path / "below").mkdir()
    second.symlink_to("below/third")
    (tmp_path / "below" / "third").symlink_to("../target")
    first.symlink_to(second)
    assert invoke("dump", storage, "--limit", "1", "--format", "ndjson", "-o", first).status == 0
    assert first.is_symlink()
    assert second.is_symlink()
    assert target.read_text().startswith('{"schema"')
    assert (tmp_path / "same").read_text() == "before"


def test_a_link_to_nothing_makes_what_it_leads_to(storage: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("made")
    assert invoke("dump", storage, "--limit", "1", "-o", link).status == 0
    assert link.is_symlink()
    assert (tmp_path / "made").stat().st_size > 0


def test_a_link_into_what_is_inspected_is_refused(storage: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(storage / SEGMENT)
    before = digest(storage)
    assert invoke("dump", storage, "-o", link).status == 13
    assert digest(storage) == before


def test_links_in_a_circle_are_an_error(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert invoke("dump", storage, "-o", tmp_path / "a").status == 14
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "b", "s"]


@pytest.mark.parametrize("form", ["ndjson", "raw"])
def test_a_fifo_is_written_to(storage: Path, tmp_path: Path, form: str) -> None:
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    assert invoke("dump", storage, "--format", form, "-o", fifo).status == 0
    reader.join()
    assert invoke("dump", storage, "--format", form, "-o", tmp_path / "plain").status == 0
    assert got == [(tmp_path / "plain").read_bytes()]
    assert stat.S_ISFIFO(os.lstat(fifo).st_mode)


@pytest.mark.parametrize("form", ["ndjson", "raw"])
def test_a_device_is_written_to(storage: Path, tmp_path: Path, form: str) -> None:
    device = tmp_path / "null"
    make_device(device)
    assert invoke("dump", storage, "--format", form, "-o", device).status == 0
    assert stat.S_ISCHR(os.lstat(device).st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["null", "s"]


def test_the_full_device_is_an_io_error(storage: Path) -> None:
    """It stays what it is."""
    assert invoke("dump", storage, "--format", "ndjson", "-o", "/dev/full").status == 14
    assert stat.S_ISCHR(os.lstat("/dev/full").st_mode)


def test_a_reader_that_goes_away_is_no_error(storage: Path, tmp_path: Path) -> None:
    """As with a pipe on standard output."""
    storage = build_directory(tmp_path / "large", {0: 4000}, size=400)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    assert run("dump", storage, "--format", "ndjson", "-o", fifo).status == 0
    reader.join()


def test_what_stands_for_standard_output_is_written_to(storage: Path) -> None:
    """/dev/stdout is a link of the system, and the pipe behind it has no name to rename anything over."""
    told = run("dump", storage, "--limit", "2", "--format", "ndjson", "-o", "/dev/stdout", "-q")
    assert (told.status, len(told.objects)) == (0, 2)
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize("kind", ["a socket", "a directory"])
def test_what_cannot_be_written_to_is_an_error_and_stays(storage: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    KINDS[kind](target)
    assert invoke("dump", storage, "-o", target).status == 14
    assert special_kind(target) == kind


def test_other_outputs_go_the_same_way(storage: Path, tmp_path: Path) -> None:
    """A page of statistics, a table of differences, the files of plans: links stay, devices are written to."""
    other = Path(shutil.copytree(storage, tmp_path / "other"))
    os.truncate(other / SEGMENT, 300)
    link, plans = tmp_path / "link", tmp_path / "plans"
    link.symlink_to("page")
    assert invoke("stats", storage, "--html", link).status == 0
    plans.mkdir()
    (plans / "2-other.json").symlink_to("../plan")
    invoke("compare", storage, other, "--plan-dir", plans)
    assert link.is_symlink()
    assert (plans / "2-other.json").is_symlink()
    assert (tmp_path / "page").stat().st_size > 0
    assert (tmp_path / "plan").stat().st_size > 0
    pytest.importorskip("pyarrow")
    table = tmp_path / "table"
    table.symlink_to("rows")
    invoke("compare", storage, other, "--differences", table)
    assert table.is_symlink()
    assert (tmp_path / "rows").stat().st_size > 0


def test_the_state_of_a_verification_stays_behind_its_link(storage: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("state")
    assert invoke("verify", storage, "--resume", link).status == 0
    assert link.is_symlink()
    assert (tmp_path / "state").stat().st_size > 0


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a directory", "a character device"])
def test_a_ready_file_is_a_plain_file(storage: Path, tmp_path: Path, kind: str) -> None:
    """A node would wait for whoever reads a FIFO, and would remove a device when it ends."""
    target = tmp_path / "ready"
    KINDS[kind](target)
    answer = invoke("serve", storage, "--ready-file", target, "--port", "0", "--http-port", "off")
    assert answer.status == 2
    assert kind in answer.err
    assert special_kind(target) == kind


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_is_named_alone_tells_of_what_stands_in_the_place_of_its_data_file(
    tmp_path: Path, kind: str
) -> None:
    storage = build_directory(tmp_path / "s", {0: 60}, per_segment=20)
    (storage / SEGMENT).unlink()
    KINDS[kind](storage / SEGMENT)
    answer = invoke("verify", storage / INDEX)
    assert answer.status != 0
    assert "special-file" in answer.out
    assert "special-file" not in invoke("verify", storage / f"0/{index_name(0)}").out
