"""How Spark's Python begins: without the archives, with this interpreter, and with what workers need imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from waltzctl.engine.spark import worker_daemon, worker_python

ROOT = Path(__file__).resolve().parents[2]
_TELL = "import json, os, sys; print(json.dumps([sys.executable, os.environ['PYTHONPATH'], sys.argv[1:]]))"


def told(launcher: Path, path: str, *arguments: str) -> tuple[str, str, list[str]]:
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [launcher, *arguments], env=environment, cwd=launcher.parent, capture_output=True, text=True, check=True
    )
    executable, seen, rest = json.loads(done.stdout)
    return executable, seen, rest


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("", ""),
        ("/s/python/lib/pyspark.zip", ""),
        ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/a b:/job.zip", "/a b:/job.zip"),
        ("/mine:/s/python/lib/pyspark.zip:/pyspark.zip.d:/*", "/mine:/pyspark.zip.d:/*"),
    ],
)
def test_the_archives_are_left_out_and_nothing_else(tmp_path: Path, path: str, kept: str) -> None:
    launcher = worker_python.write_launcher(tmp_path)
    assert told(launcher, path, "-c", _TELL, "-m", "a b") == (sys.executable, kept, ["-m", "a b"])


@pytest.mark.parametrize(
    ("daemon", "started"), [(True, "waltzctl/engine/spark/worker_daemon"), (False, "pyspark/daemon")]
)
def test_whose_daemon_is_started_and_it_keeps_its_arguments(tmp_path: Path, daemon: bool, started: str) -> None:
    launcher = worker_python.write_launcher(tmp_path, daemon=daemon)
    module = tmp_path / f"{started}.py"
    module.parent.mkdir(parents=True)
    for package in module.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    module.write_text(_TELL)
    assert told(launcher, str(tmp_path), "-m", "pyspark.daemon", "pyspark.worker")[2] == ["pyspark.worker"]


def test_pyspark_out_of_an_archive_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__file__", "/s/python/lib/pyspark.zip/pyspark/__init__.py")
    assert worker_python.write_launcher(tmp_path) == Path(sys.executable)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("module", sorted(worker_daemon.NEEDED))
def test_what_is_needed_is_there(module: str) -> None:
    """A module that was renamed would only be missed by its slowness."""
    import importlib.util

    assert importlib.util.find_spec(module) is not None
    for name in worker_daemon.NEEDED[module]:
        assert importlib.util.find_spec(name) is not None


def test_what_cannot_be_imported_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worker_daemon.NEEDED, "pyspark.worker", ("no_such_module", "waltzctl.engine.amounts"))
    monkeypatch.delitem(sys.modules, "waltzctl.engine.amounts", raising=False)
    worker_daemon.import_needed("pyspark.worker")
    assert "waltzctl.engine.amounts" in sys.modules


def test_the_daemon_begins_when_the_program_of_its_workers_is_imported(tmp_path: Path) -> None:
    tell = "import sys\ndef manager(): print('program' in sys.modules, sys.argv[1:])"
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text(tell)
    (tmp_path / "program.py").touch()
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "waltzctl.engine.spark.worker_daemon", "program", "other"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True ['program', 'other']\n"
