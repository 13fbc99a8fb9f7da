"""Compiled code is kept where only this user can write, and a bad cache is no error."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scan.wire_support import kept_object
from waltzctl.engine.scan import code_cache, compiled

needs_owner_checks = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners here")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def kept(root: Path) -> list[Path]:
    return sorted((root / "waltzctl" / "code").glob("*"))


def test_kept_code_comes_back(root: Path) -> None:
    assert code_cache.get("name") is None
    assert not code_cache.contains("name")
    code_cache.put("name", b"code")
    assert code_cache.get("name") == b"code"
    assert code_cache.contains("name")
    code_cache.put("name", b"other")
    assert code_cache.get("name") == b"other"
    assert [path.name for path in kept(root)] == ["name"]
    assert stat.S_IMODE((root / "waltzctl").stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "waltzctl" / "code").stat().st_mode) == 0o700
    assert stat.S_IMODE(kept(root)[0].stat().st_mode) == 0o600


def test_a_cache_is_made_for_this_user_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "new"))
    before = os.umask(0)
    try:
        code_cache.put("name", b"code")
    finally:
        os.umask(before)
    made = [root / "new", root / "new" / "waltzctl", root / "new" / "waltzctl" / "code"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700] * 3
    assert code_cache.get("name") == b"code"
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "another" / "below"))
    code_cache.put("name", b"code")
    assert not (root / "another").exists()


@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)])
def test_code_of_any_size_is_not_read(more: int, taken: bool, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code_cache.put("name", b"code")
    monkeypatch.setattr(code_cache, "_LIMIT", kept(root)[0].stat().st_size - more)
    assert (code_cache.get("name") == b"code") == taken


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(root: Path) -> None:
    code_cache.put("other", b"code")
    directory = root / "waltzctl" / "code"
    (directory / "name").mkdir()
    code_cache.put("name", b"code")
    assert sorted(os.listdir(directory)) == ["name", "other"]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        code_cache.put("name", b"code")
        code_cache.get("other")
        code_cache.contains("name")
    assert before in (0, len(os.listdir("/proc/self/fd")))


def test_damaged_code_is_not_taken(root: Path) -> None:
    code_cache.put("name", b"code" * 100)
    (path,) = kept(root)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        assert code_cache.get("name") is None
    for size in (0, 1, 8, 39, 40, len(good) - 1):
        path.write_bytes(good[:size])
        assert code_cache.get("name") is None
    path.write_bytes(good)
    path.rename(path.with_name("another"))  # the digest covers the name: old code is not taken for new
    assert code_cache.get("another") is None


@pytest.mark.parametrize("below", ["", "waltzctl", "waltzctl/code"])
def test_directory_that_others_may_write_is_not_used(root: Path, below: str) -> None:
    code_cache.put("name", b"code")
    (root / below).chmod(0o777)
    assert code_cache.get("name") is None
    code_cache.put("second", b"code")
    (root / below).chmod(0o700)
    assert code_cache.get("second") is None
    assert code_cache.get("name") == b"code"


def test_file_that_others_may_write_is_not_taken(root: Path) -> None:
    code_cache.put("name", b"code")
    kept(root)[0].chmod(0o620)
    assert code_cache.get("name") is None


def test_links_are_not_followed(root: Path) -> None:
    code_cache.put("name", b"code")
    (path,) = kept(root)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))
    assert code_cache.get("name") is None
    (root / "waltzctl").rename(root / "moved")
    (root / "waltzctl").symlink_to(root / "moved")
    code_cache.put("second", b"code")
    assert code_cache.get("second") is None
    assert not (root / "moved" / "code" / "second").exists()


@needs_owner_checks
def test_foreign_directory_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code_cache.put("name", b"code")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert code_cache.get("name") is None
    code_cache.put("second", b"code")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))
    assert [path.name for path in kept(root)] == ["name"]


def test_no_place_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "below", Path("/proc/nothing")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        code_cache.put("name", b"code")
        assert code_cache.get("name") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore such a value
    monkeypatch.setenv("HOME", "/proc/nothing")
    code_cache.put("name", b"code")
    assert code_cache.get("name") is None


def test_something_else_under_the_name(root: Path) -> None:
    code_cache.put("other", b"code")
    directory = root / "waltzctl" / "code"
    (directory / "name").mkdir()
    os.mkfifo(directory / "pipe")
    assert code_cache.get("name") is None
    assert code_cache.get("pipe") is None
    code_cache.put("name", b"code")
    assert sorted(path.name for path in kept(root)) == ["name", "other", "pipe"]


def test_whoever_only_asks_makes_nothing(root: Path) -> None:
    assert not code_cache.contains("name")
    assert code_cache.get("name") is None
    assert [*root.iterdir()] == []


@pytest.mark.parametrize("kind", ["nothing", "others may write it", "half of it"])
def test_without_a_cache_no_file_of_the_working_directory_is_touched(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    code_cache.put("name", b"code")
    here = root / "here"
    here.mkdir()
    (here / "name").write_bytes(kept(root)[0].read_bytes())
    monkeypatch.chdir(here)
    if kind == "nothing":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    elif kind == "half of it":
        shutil.rmtree(root / "waltzctl" / "code")
        (root / "waltzctl" / "code").write_text("")
    else:
        (root / "waltzctl").chmod(0o770)
    assert not code_cache.contains("name")
    assert code_cache.get("name") is None
    code_cache.put("other", b"code")
    assert os.listdir(here) == ["name"]


def test_only_a_file_of_its_own_is_there(root: Path) -> None:
    code_cache.put("name", b"code")
    directory = root / "waltzctl" / "code"
    (directory / "link").symlink_to("name")
    (directory / "directory").mkdir()
    os.mkfifo(directory / "pipe")
    names = ("name", "link", "directory", "pipe", "nothing")
    assert [code_cache.contains(name) for name in names] == [True, False, False, False, False]


@pytest.mark.parametrize("below", ["cache", "cache/waltzctl", "cache/waltzctl/code"])
def test_a_pipe_in_the_place_of_a_directory_is_not_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    place = root / below
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.mkfifo(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    assert code_cache.get("name") is None
    code_cache.put("name", b"code")
    assert not code_cache.contains("name")


@pytest.fixture
def table_code() -> bytes:
    """Asked for in front of `root`, it comes from the user's cache, as in any other run."""
    return kept_object(compiled, "table")


def test_whether_code_of_a_way_or_of_the_fastest_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest, *_, slowest = compiled.available_ways()
    assert [compiled.cached(way) for way in (slowest, fastest, None)] == [False] * 3
    code_cache.put(compiled._code_name(slowest), b"code")
    assert [compiled.cached(way) for way in (slowest, fastest, None)] == [True, False, False]
    code_cache.put(compiled._code_name(fastest), b"code")
    assert [compiled.cached(way) for way in (slowest, fastest, None)] == [True] * 3
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    compiled.available_ways.cache_clear()
    try:
        assert not compiled.cached()
    finally:
        compiled.available_ways.cache_clear()


@pytest.mark.turns(10)
def test_kernel_from_a_cache_with_rubbish_in_it(table_code: bytes, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken files are compiled anew; whole ones are loaded without the compiler."""
    way, made = "table", []
    monkeypatch.setattr(compiled, "_compile", lambda way: made.append(way) or table_code)
    monkeypatch.setattr(compiled, "_loaded", {})
    name = compiled._code_name(way)
    code_cache.put("other", b"")
    (root / "waltzctl" / "code" / name).write_bytes(b"rubbish")
    compiled.load(way)
    assert (code_cache.get(name), made) == (table_code, [way])
    monkeypatch.setattr(compiled, "_loaded", {})
    monkeypatch.setattr(compiled, "_compile", lambda _: pytest.fail("compiled again"))
    assert compiled.load(way).name == f"compiled, {way}"


@pytest.mark.turns(12)
def test_loading_from_the_cache_leaves_numba_out(root: Path) -> None:
    script = (
        "import sys\n"
        "from waltzctl.engine.scan import compiled\n"
        f"compiled.load({compiled.available_ways()[0]!r})\n"
        "print('numba' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(root)}
    answers = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert answers == ["True\n", "False\n"]


def test_small_scan_imports_no_compiler() -> None:
    script = (
        "import sys\n"
        "from waltzctl.engine.scan.scanner import scan_records\n"
        "from waltzctl.engine.scan.byte_source import BytesSource\n"
        "list(scan_records(BytesSource(bytes(200)), first_transaction_id=0))\n"
        "print(sorted({'numba', 'llvmlite', 'construct.lib'} & sys.modules.keys() - {'construct.lib'}))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
