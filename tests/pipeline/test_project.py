"""A project as init writes it, read back; what is refused; the commands around it.  Without Spark."""

from __future__ import annotations

import ast
import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.builders import build_directory
from tests.cli.running import ROOT, invoke
from tests.storage.support import unexaminable
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    DiskReadError,
    DiskWriteError,
    InvalidRequestError,
    NotWaltzError,
    PipelineError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.pipeline import run_recovery, running
from waltzctl.engine.pipeline.bucket_files import bucket_file, keep_number
from waltzctl.engine.pipeline.column_types import parse_columns
from waltzctl.engine.pipeline.completeness import IncompleteRange
from waltzctl.engine.pipeline.project import FORMATS, TABLES, defaults_of, open_project, with_following
from waltzctl.engine.pipeline.project_creation import create_project
from waltzctl.engine.pipeline.run_failures import run_failure
from waltzctl.engine.pipeline.running import RunOptions, check_tables
from waltzctl.engine.spark.offsets import Anchor, history_changed, issued_again
from waltzctl.engine.spark.spark_session import Session, SparkOptions


@pytest.mark.parametrize("table_format", FORMATS)
def test_what_init_writes_is_what_it_was_asked_for(tmp_path: Path, table_format: str) -> None:
    target = tmp_path / "lake-é"
    made = create_project(target, ["a/node", "waltz://h:1", "s3://b/n"], table_format)
    assert sorted(made.files) == sorted(str(one.relative_to(target)) for one in target.rglob("*") if one.is_file())
    project = open_project(target)
    assert project.sources == (os.path.abspath("a/node"), "waltz://h:1", "s3://b/n") == made.sources
    assert (project.format, project.options, project.buckets) == (table_format, {}, 8)
    assert project.storage_path == target / "storage"
    assert project.decoder.key == ("key",)
    defaults = defaults_of(target)
    assert defaults["spark.sql.warehouse.dir"] == f"file://{target}"  # Spark decodes nothing
    assert ("spark.jars.packages" in defaults) == (table_format != "parquet")
    for one in (target / "transformations").glob("*.py"):
        ast.parse(one.read_text())
        assert len(one.read_text().splitlines()) < 30


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("node", "{here}/node"), ("../node", "{above}/node"), ("vault:backups::latest", "vault:{here}/backups::latest"),
        ("vault:../b::0a1b/0", "vault:{above}/b::0a1b/0"), ("vault:/b::latest", "vault:/b::latest"), ("file:/n", "/n"),
        ("s3://b/n", "s3://b/n"), ("waltz://h:1", "waltz://h:1"),
    ],
)  # fmt: skip
def test_sources_are_named_for_whoever_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, kept: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = kept.format(here=tmp_path, above=tmp_path.parent)
    assert create_project(tmp_path / "p", [named]).sources == (wanted,)
    with pytest.raises(InvalidRequestError, match="is named twice"):
        create_project(tmp_path / "q", [named, wanted])


@pytest.mark.parametrize("between", [" ", "      ", "\t", "=", " = ", ":", "\t=\t"])
def test_settings_are_read_as_spark_reads_them(tmp_path: Path, between: str) -> None:
    create_project(tmp_path / "p", ["/n"])
    before = defaults_of(tmp_path / "p")
    with open(tmp_path / "p" / "conf" / "spark-defaults.conf", "a") as file:
        file.write(f"# a note\n  spark.driver.memory{between}4g  \nspark.a{between}jdbc:derby:;b=c d\nspark.b\n")
    assert defaults_of(tmp_path / "p") == {
        **before, "spark.driver.memory": "4g", "spark.a": "jdbc:derby:;b=c d", "spark.b": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("spark.jars.packages  a:b:1,\\\n    c:d:2,\\\n# e", "spark.jars.packages", "a:b:1,c:d:2,# e"),
        ("! spark.b 1\n# spark.c 1\\\nspark.a 2", "spark.a", "2"),
        ("spark.a -Dx=\\\\d\\tz", "spark.a", "-Dx=\\d\tz"),
        ("spark.a C:\\\\\nspark.d 1", "spark.a", "C:\\"),
        ("spark.a\\:b\\ c \\\n\t= \\u00e9", "spark.a:b c", "é"),
    ],
)
def test_settings_go_on_behind_a_backslash(tmp_path: Path, line: str, name: str, value: str) -> None:
    """As Java reads properties; of a long list of packages the second line was a setting of its own."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(line + "\n", encoding="utf-8")
    assert {**defaults_of(tmp_path), "spark.d": ""} == {name: value, "spark.d": ""}


def test_the_catalog_takes_other_columns_in_a_project_of_before_as_well(tmp_path: Path) -> None:
    """What a full refresh after a change of SCHEMA needs; somebody who says otherwise is heard."""
    create_project(tmp_path / "p", ["/n"])
    name, wanted = "spark.hadoop.hive.metastore.disallow.incompatible.col.type.changes", "false"
    assert defaults_of(tmp_path / "p")[name] == wanted
    conf = tmp_path / "p" / "conf" / "spark-defaults.conf"
    kept = "".join(line for line in conf.read_text().splitlines(keepends=True) if name not in line)
    for said, given in (("", wanted), (f"{name} true\n", "true")):
        conf.write_text(kept + said)
        assert dict(running._settings(open_project(tmp_path / "p"), SparkOptions()))[name] == given


def test_spark_takes_the_specification(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    from pyspark.pipelines.cli import find_pipeline_spec, load_pipeline_spec

    create_project(tmp_path / "p", ["/data/n"])
    spec = load_pipeline_spec(find_pipeline_spec(tmp_path / "p"))
    assert spec.storage == f"file://{tmp_path / 'p' / 'storage'}"
    assert [one.include for one in spec.libraries] == ["transformations/**/*"]


@pytest.mark.turns(10)
def test_the_projects_own_tests_pass(tmp_path: Path) -> None:
    create_project(tmp_path / "p", ["/data/n"])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path / "p", env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "decoder.py").write_text("mine")
    with pytest.raises(RefusedError, match=r"not empty, decoder\.py is there"):
        create_project(tmp_path / "p", ["/data/n"])
    with pytest.raises(RefusedError, match="exists and is not a directory"):
        create_project(tmp_path / "p" / "decoder.py", ["/data/n"])
    assert [one.name for one in (tmp_path / "p").iterdir()] == ["decoder.py"]


@pytest.mark.parametrize(
    ("sources", "words"),
    [([], "no source"), (["/n", "/n"], "named twice"), (["a\nb"], "line break"), (["/\udcff"], "no UTF-8")],
)
def test_sources_that_cannot_be_meant(tmp_path: Path, sources: list[str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        create_project(tmp_path / "p", sources)
    assert not (tmp_path / "p").exists()


def test_a_project_has_a_name_that_text_can_hold(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no UTF-8"):
        create_project(tmp_path / "\udcff", ["/n"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sign", [*' %#?"[]{}|^`<>\\\n', ";"])
def test_a_project_has_a_name_that_spark_finds_again(tmp_path: Path, sign: str) -> None:
    with pytest.raises(InvalidRequestError, match="semicolon" if sign == ";" else "plain name"):
        create_project(tmp_path / f"my{sign}lake", ["/n"])
    assert not list(tmp_path.iterdir())


def test_checkpoints_lie_where_spark_finds_them_again(tmp_path: Path) -> None:
    create_project(tmp_path / "p", ["/n"])
    spec = tmp_path / "p" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace('/storage"', '/my%20storage"'))
    with pytest.raises(InvalidRequestError, match=r"has '%'.*plain name"):
        open_project(tmp_path / "p")


def test_a_decoder_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "orders.py"
    own.write_text("SCHEMA = 'order BIGINT'\nKEY = 'order'\ndef decode(header, data): return {'order': header}\n")
    made = create_project(tmp_path / "p", ["/n"], decoder=own)
    assert "tests/test_decoder.py" not in made.files
    assert open_project(tmp_path / "p").decoder.key == ("order",)
    own.write_text("def (")
    with pytest.raises(InvalidRequestError, match=r"orders\.py"):
        create_project(tmp_path / "q", ["/n"], decoder=own)


def edited(tmp_path: Path, **changes: str) -> Path:
    create_project(tmp_path / "p", ["/n"])
    spec = tmp_path / "p" / "spark-pipeline.yml"
    said = yaml.safe_load(spec.read_text())
    said["configuration"] |= {name.replace("_", "."): value for name, value in changes.items()}
    spec.write_text(yaml.safe_dump(said))
    return tmp_path / "p"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("waltz_sources", "# nothing", "names no replica"),
        ("waltz_format", "csv", "parquet, delta, iceberg"),
        ("waltz_options", "partitions", "NAME=VALUE"),
        ("waltz_state_buckets", "0", "1 to 10000"),
        ("waltz_sorces", "x", "no setting waltz.sorces"),
    ],
)
def test_settings_that_cannot_be_meant_name_the_file(tmp_path: Path, name: str, value: str, words: str) -> None:
    directory = edited(tmp_path, **{name: value})

    def read() -> None:
        project = open_project(directory)
        project.format, project.options, project.buckets  # noqa: B018

    with pytest.raises(InvalidRequestError) as caught:
        read()
    assert words in str(caught.value)
    assert str(directory / "spark-pipeline.yml") in str(caught.value)


UNREADABLE = (
    "[" * 100_000,
    "storage: !!bool foo",
    "storage: !!timestamp foo",
    "storage: !!timestamp {=: 1}",
    'storage: "\\UFFFFFFFF"',
    "storage: 1" + ":59" * 400 + ".5",
)


@pytest.mark.parametrize("name", ["name", "catalog", "database", "schema"])
def test_a_name_of_aliases_to_aliases_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Each line doubles what they stand for."""
    directory = edited(tmp_path)
    lines = ["left:", "  - &a0 [x, x]", *(f"  - &a{number + 1} [*a{number}, *a{number}]" for number in range(18))]
    spec = directory / "spark-pipeline.yml"
    left = [line for line in spec.read_text().splitlines() if not line.startswith("name:")]
    spec.write_text("\n".join([*left, *lines, f"{name}: *a18"]) + "\n")
    with pytest.raises(InvalidRequestError, match=rf"spark-pipeline\.yml: {name} must be a text"):
        open_project(directory)


def test_a_setting_whose_name_is_a_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text('storage: "file:///s"\nconfiguration: {waltz.sources: /n, 2: "2"}\n')
    with pytest.raises(InvalidRequestError, match=r"spark-pipeline\.yml: the names and values"):
        open_project(tmp_path)


def test_a_note_beside_the_settings_may_be_of_another_encoding(tmp_path: Path) -> None:
    """Spark reads it."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_bytes("# für alle\nspark.a 1\n".encode("latin-1"))
    assert defaults_of(tmp_path) == {"spark.a": "1"}


@pytest.mark.turns(10)
@pytest.mark.parametrize("text", UNREADABLE)
def test_a_specification_that_yaml_cannot_read_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(text)
    with pytest.raises(InvalidRequestError, match=r"spark-pipeline\.yml: "):
        open_project(tmp_path)


def test_a_directory_that_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(NotWaltzError, match="pipeline init"):
        open_project(tmp_path)


def test_columns_are_read_as_spark_reads_them() -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    text = "a STRING, `b c` decimal(10, 2), d array<struct<x:int, y : map<string,bigint>>>, e TIMESTAMP"
    found = "struct<a:string,b c:decimal(10,2),d:array<struct<x:int,y:map<string,bigint>>>,e:timestamp>"
    assert parse_columns(text).simpleString() == found
    for wrong in ("a", "a NOTHING", "a INT, A INT", "a ARRAY<INT", "a MAP<INT>", ""):
        with pytest.raises(ValueError, match=r"."):
            parse_columns(wrong)


def test_tables_that_are_made_of_another_begin_anew_with_it() -> None:
    assert with_following(("transactions",)) == ("transactions", "quarantine", "state", "state_history")
    assert with_following(("completeness",)) == ("completeness",)
    for wrong in (RunOptions(refresh=("x",)), RunOptions(full_refresh_all=True, refresh=("state",))):
        with pytest.raises(InvalidRequestError):
            check_tables(wrong)


def test_a_sink_is_brought_up_to_date_by_a_run_of_everything(tmp_path: Path) -> None:
    create_project(tmp_path / "p", ["/n"])
    create_project(tmp_path / "d", ["/n"], "delta")
    project, merged = open_project(tmp_path / "p"), open_project(tmp_path / "d")
    both = RunOptions(full_refresh=("transactions", "state"))
    assert running.program_arguments(project, both) == [["run", "--full-refresh", "transactions"], ["run"]]
    assert running.program_arguments(merged, both) == [["run", "--full-refresh", "transactions,state"]]
    assert running.program_arguments(project, RunOptions(refresh=("state",))) == [["run"]]
    only = RunOptions(refresh=("tallies", "activity"))
    assert running.program_arguments(project, only) == [["run", "--refresh", "tallies,activity"]]
    assert running.program_arguments(project, RunOptions()) == [["run"]]
    assert running.program_arguments(project, RunOptions(full_refresh_all=True)) == [["run", "--full-refresh-all"]]
    assert running.program_arguments(project, RunOptions(dry_run=True)) == [["dry-run"]]


@pytest.mark.parametrize("looking", [RunOptions(complete=True), RunOptions(look=True)])
def test_whoever_looks_at_the_tables_sees_those_of_this_run(tmp_path: Path, looking: RunOptions) -> None:
    """Where tables are named Spark leaves out all others, completeness among them."""
    create_project(tmp_path / "p", ["/n"])
    project = open_project(tmp_path / "p")
    assert running.program_arguments(project, looking) == [["run"]]
    named = replace(looking, full_refresh=("records",))
    assert running.program_arguments(project, named) == [["run", "--full-refresh", "records"], ["run"]]
    assert running.program_arguments(project, replace(looking, full_refresh_all=True)) == [
        ["run", "--full-refresh-all"]
    ]


class _Program:
    """What is asked of Spark's program, instead of it; `fails`: as if it were killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[RunOptions] = []
        self.fails = False
        monkeypatch.setattr(running, "_run_programs", lambda _project, options, _environment, _say: self._do(options))
        self.left: tuple[str, ...] = ()
        self.there = set(TABLES)
        monkeypatch.setattr(running, "uncataloged_tables", lambda _session, _project: self.left)
        monkeypatch.setattr(running, "check_columns", lambda _spark, _project: self.looked.append("columns"))
        self.looked: list[str] = []
        monkeypatch.setattr(running, "check_format", lambda _spark, _project: None)

    @property
    def server(self) -> running.PipelineServer:
        """One whose catalog knows the tables that are there."""
        catalog = SimpleNamespace(tableExists=lambda name: name in self.there)
        session = SimpleNamespace(spark=SimpleNamespace(catalog=catalog), options=SparkOptions())
        return running.PipelineServer(cast("Session", session), {})

    def _do(self, options: RunOptions) -> None:
        self.asked.append(options)
        if self.fails:
            raise KeyboardInterrupt


def test_a_refresh_that_was_killed_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    server = program.server
    followed = ("transactions", "quarantine", "state", "state_history")
    checkpoint = tmp_path / "p" / "storage" / "_checkpoints" / "state"
    checkpoint.mkdir(parents=True)
    program.fails = True
    with pytest.raises(KeyboardInterrupt):
        running.run_at(server, project, RunOptions(full_refresh=("transactions",)), print)
    assert not checkpoint.exists()
    program.fails = False
    assert running.run_at(server, project, RunOptions(), print).refreshed == followed
    assert running.run_at(server, project, RunOptions(), print).refreshed == ()
    assert [one.full_refresh for one in program.asked] == [followed, followed, ()]


@pytest.mark.parametrize("dry_run", [False, True])
def test_of_two_runs_of_a_project_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    """At somebody else's server, or with another catalog, nothing kept them apart: the note of a full refresh was lost."""
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    options = RunOptions(dry_run=dry_run)
    descriptor = os.open(tmp_path / "p", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with nullcontext() if dry_run else pytest.raises(RefusedError, match="another run is at work there"):
            running.run_at(program.server, project, options, print)
        assert len(program.asked) == dry_run
    finally:
        os.close(descriptor)
    for _ in range(2):
        running.run_at(program.server, project, options, print)
    assert len(program.asked) == 2 + dry_run


@pytest.mark.parametrize("link", ["checkpoint", "state"])
def test_state_does_not_begin_anew_by_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    """What says how far it is lies elsewhere, behind a link, or its files do: neither is gone on with without the other."""
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    places = {"checkpoint": tmp_path / "p" / "storage" / "_checkpoints" / "state", "state": tmp_path / "p" / "state"}
    for name, one in places.items():
        one.parent.mkdir(parents=True, exist_ok=True)
        there = tmp_path / "elsewhere" / name if name == link else one
        there.mkdir(parents=True)
        (there / "part-00000.parquet").touch()
        if there != one:
            one.symlink_to(there)
    with pytest.raises(PipelineError, match=f"{places[link]}: it cannot be removed") as raised:
        running.run_at(program.server, project, RunOptions(full_refresh=("state",)), print)
    assert raised.value.status == "io-error"
    assert program.asked == []
    assert places["state"].exists()
    places[link].unlink()
    assert running.run_at(program.server, project, RunOptions(), print).refreshed == ("state",)
    assert not any(one.exists() for one in places.values())


def test_state_on_a_file_system_of_its_own_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    state, remove = tmp_path / "p" / "state", os.rmdir
    state.mkdir()
    (state / "part-00000.parquet").touch()

    def busy(path: Any, **more: Any) -> None:
        if Path(path).name == "state":
            raise OSError(errno.EBUSY, "it is busy")
        remove(path, **more)

    monkeypatch.setattr(os, "rmdir", busy)
    assert running.run_at(program.server, project, RunOptions(full_refresh=("state",)), print).refreshed == ("state",)
    assert os.listdir(state) == []


def test_what_begins_anew_is_noted_for_good_before_anything_of_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    checkpoint, state = tmp_path / "p" / "storage" / "_checkpoints" / "state", tmp_path / "p" / "state"
    for one in (checkpoint, state):
        one.mkdir(parents=True)
    synced: list[tuple[str, bool, bool]] = []

    def observe(change: disk.Change) -> None:
        if change.kind == "sync-directory":
            synced.append((change.path.name, checkpoint.exists(), state.exists()))

    monkeypatch.setattr(disk, "observer", observe)
    running.run_at(program.server, project, RunOptions(full_refresh=("state",)), print)
    assert synced == [("storage", True, True), ("_checkpoints", False, True), ("p", False, False)]


def test_what_a_kill_left_of_a_table_is_removed_and_the_table_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    server = program.server
    program.left = ("records", "activity")
    for name in program.left:
        (tmp_path / "p" / name).mkdir()
        (tmp_path / "p" / name / "part").touch()
    said: list[str] = []
    assert running.run_at(server, project, RunOptions(), said.append).refreshed == ("records", "quarantine", "tallies")
    assert not (tmp_path / "p" / "records").exists()
    assert not (tmp_path / "p" / "activity").exists()
    assert "records: not whole" in said[0]
    (asked,) = program.asked
    assert running.program_arguments(project, asked) == [
        ["run", "--full-refresh", "records,quarantine,tallies"], ["run"],
    ]  # fmt: skip


def test_a_table_that_somebody_removed_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint says that the rows of before are in it, and Spark would go on with an empty one."""
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    checkpoints, state = tmp_path / "p" / "storage" / "_checkpoints", tmp_path / "p" / "state"
    commits = {name: checkpoints / "spark_catalog" / "default" / name / name / "0" / "commits" for name in TABLES}
    commits["state"] = checkpoints / "state" / "state" / "0" / "commits"
    said: list[str] = []
    places: dict[str, str | None] = dict.fromkeys(TABLES, f"file:{tmp_path}")
    monkeypatch.setattr(run_recovery, "_table_location", lambda _spark, name: places[name])

    def refreshed(*, dropped: set[str]) -> tuple[str, ...]:
        program.there = {*TABLES} - dropped
        return running.run_at(program.server, project, RunOptions(), said.append).refreshed

    for one in ("transactions", "tallies", "state"):
        commits[one].mkdir(parents=True)
    assert refreshed(dropped={*TABLES}) == ()
    for one in ("transactions", "tallies"):
        (commits[one] / "0").touch()
    assert refreshed(dropped={"records"}) == ()
    assert refreshed(dropped={"tallies"}) == ("tallies",)
    assert refreshed(dropped={"transactions"}) == ("transactions", "quarantine", "state", "state_history")
    assert said == [f"{one}: not whole since the run before; read anew" for one in ("tallies", "transactions")]

    (tmp_path / "empty").mkdir()
    for place, expected in (("empty", ("tallies",)), ("gone", ("tallies",)), ("p", ())):
        places["tallies"] = str(tmp_path / place)
        assert refreshed(dropped=set()) == expected
    for elsewhere in ("s3://bucket/tallies", None):
        places["tallies"] = elsewhere
        assert refreshed(dropped=set()) == ()

    for made, expected in (("all", ()), ("some", ("state",)), ("none", ("state",))):
        commits["state"].mkdir(parents=True, exist_ok=True)
        (commits["state"] / "0").touch()
        state.mkdir(exist_ok=True)
        for bucket in (0, 1):
            bucket_file(state, bucket).touch()
        keep_number(state, 8, ("key",))
        if made == "some":
            bucket_file(state, 0).unlink()
        if made == "none":
            shutil.rmtree(state)
        assert refreshed(dropped=set()) == expected
    assert not commits["state"].exists()


@pytest.mark.parametrize("database", [None, "d"])
def test_a_table_whose_checkpoint_is_gone_or_an_older_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str | None
) -> None:
    """Spark counted its batches from there on, and the table passed over those whose numbers it had: what was new was lost."""
    create_project(tmp_path / "p", ["/n"])
    if database is not None:
        with open(tmp_path / "p" / "spark-pipeline.yml", "a") as file:
            file.write(f"database: {database}\n")
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    monkeypatch.setattr(running, "removed_tables", lambda *_, but: ())
    lies = tmp_path / "p" if database is None else tmp_path / "elsewhere"
    monkeypatch.setattr(
        run_recovery, "_table_location", lambda _spark, name: f"file:{lies / name.removeprefix('`d`.')}"
    )
    program.there = {f"{project.namespace}{one}" for one in TABLES}
    said: list[str] = []

    def refreshed() -> tuple[str, ...]:
        return running.run_at(program.server, project, RunOptions(), said.append).refreshed

    plans = project.storage_path
    assert plans is not None
    plans /= f"_checkpoints/spark_catalog/{database or 'default'}/tallies/tallies"
    held = lies / "tallies" / "_spark_metadata"
    held.mkdir(parents=True)
    assert refreshed() == ()
    (held / "0").touch()
    (held / ".0.crc").touch()
    (plans / "0" / "commits").mkdir(parents=True)
    assert refreshed() == ("tallies",)
    for number in ("0", "1", "9", "10"):
        (plans / number / "offsets").mkdir(parents=True)
    (plans / "1" / "offsets" / "0").touch()
    assert refreshed() == ("tallies",)
    (plans / "10" / "offsets" / "0").touch()
    assert refreshed() == ()
    (held / "9.compact").touch()
    (plans / "10" / "offsets" / "8").touch()
    assert refreshed() == ("tallies",)
    for number in ("9", "10"):  # planned, and not yet in the table
        (plans / "10" / "offsets" / number).touch()
        assert refreshed() == ()
    for one in held.iterdir():
        one.unlink()
    assert refreshed() == ()
    (plans / "10" / "commits").mkdir()
    (plans / "10" / "commits" / "10").touch()
    (held.parent / "part-0.parquet").touch()
    assert refreshed() == ("tallies",)
    (held / "10").touch()
    assert refreshed() == ()
    assert said == ["tallies: not whole since the run before; read anew"] * 4


def test_a_table_of_another_format_that_holds_rows_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    """They came once more."""
    create_project(tmp_path / "p", ["/n"], "delta")
    project = open_project(tmp_path / "p")
    rows = {"state": 1, "tallies": 1, "records": 0, "completeness": 1}

    def table(name: str) -> Any:
        return SimpleNamespace(head=lambda count: [()] * min(count, rows[name]))

    spark = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda name: name in rows), table=table)
    session = SimpleNamespace(spark=spark, options=SparkOptions())
    assert run_recovery.mismatched_tables(cast("Session", session), project, but=()) == ("tallies", "state")
    assert run_recovery.mismatched_tables(cast("Session", session), project, but=("tallies",)) == ("state",)
    assert project.storage_path is not None
    plans = project.storage_path / "_checkpoints" / "spark_catalog" / "default" / "state" / "state" / "0" / "offsets"
    plans.mkdir(parents=True)
    (plans / "0").touch()
    assert run_recovery.mismatched_tables(cast("Session", session), project, but=("tallies",)) == ()
    session.options = SparkOptions("sc://h:1")
    assert run_recovery.mismatched_tables(cast("Session", session), project, but=()) == ()


@pytest.mark.parametrize("told", [True, False])
def test_where_a_table_lies_is_no_column_of_that_name(*, told: bool) -> None:
    """A decoder's column "Location" made state_history one that somebody had removed, at every run."""
    said = [("key", "string"), ("Location", "string"), ("", ""), ("# Detailed Table Information", ""), ("Name", "t")]
    said += [("Location", "file:/lake/t")] if told else []
    rows = [{"col_name": name, "data_type": kind} for name, kind in said]
    spark = cast("Any", SimpleNamespace(sql=lambda _asked: SimpleNamespace(collect=lambda: rows)))
    assert run_recovery._table_location(spark, "t") == ("file:/lake/t" if told else None)


def test_tables_that_were_never_made_are_made_with_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    server, program.there = program.server, set()
    said: list[str] = []

    def asked(options: RunOptions) -> list[list[str]]:
        running.run_at(server, project, options, said.append)
        return running.program_arguments(project, program.asked[-1])

    others = "transactions,quarantine,tallies,state_history,completeness"
    assert asked(RunOptions(refresh=("records", "activity"))) == [["run", "--refresh", f"records,activity,{others}"]]
    assert said == [f"{others.replace(',', ', ')}: not there yet; made as well"]
    program.there = set(TABLES)
    assert asked(RunOptions(refresh=("records", "activity"))) == [["run", "--refresh", "records,activity"]]
    assert asked(RunOptions()) == [["run"]]
    program.there.remove("tallies")
    assert asked(RunOptions(refresh=("records",))) == [["run", "--refresh", "records,tallies"]]
    assert asked(RunOptions(full_refresh=("transactions",))) == [
        ["run", "--full-refresh", "transactions,quarantine,state_history", "--refresh", "tallies"], ["run"],
    ]  # fmt: skip
    assert asked(RunOptions()) == [["run"]]
    assert len(said) == 3


def test_state_is_made_anew_where_its_rows_are_to_have_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of before stayed beside those by the new one: a key had several."""
    create_project(tmp_path / "p", ["/n"])
    program, state = _Program(monkeypatch), tmp_path / "p" / "state"
    said: list[str] = []
    for kept, refreshed in ((("key",), ()), (("value",), ("state",)), (("key", "value"), ("state",))):
        state.mkdir()
        keep_number(state, 8, kept)
        bucket_file(state, 0).touch()
        report = running.run_at(program.server, open_project(tmp_path / "p"), RunOptions(), said.append)
        assert (report.refreshed, state.exists()) == (refreshed, not refreshed)
        shutil.rmtree(state, ignore_errors=True)
    assert said == [f"state: KEY is key, and its rows are by {by}; made anew" for by in ("value", "key, value")]


def test_state_is_made_anew_where_it_is_to_have_another_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = edited(tmp_path, waltz_state_buckets="9")
    program = _Program(monkeypatch)
    server = program.server
    state, checkpoint = directory / "state", directory / "storage" / "_checkpoints" / "state"
    said: list[str] = []
    for kept, refreshed in ((9, ()), (8, ("state",)), (10, ("state",))):
        for one in (state, checkpoint):
            one.mkdir(parents=True, exist_ok=True)
        keep_number(state, kept, ("key",))
        bucket_file(state, 0).touch()
        assert running.run_at(server, open_project(directory), RunOptions(dry_run=True), said.append).refreshed == ()
        assert (state.exists(), said) == (True, [])
        assert running.run_at(server, open_project(directory), RunOptions(), said.append).refreshed == refreshed
        assert program.asked[-1].full_refresh == refreshed
        assert state.exists() == checkpoint.exists() == (not refreshed)
        assert [f"files are of {kept}; made anew" in line for line in said] == [True] * len(refreshed)
        said.clear()
        shutil.rmtree(state, ignore_errors=True)


@pytest.mark.parametrize(("there", "refused"), [("parquet", False), ("DELTA", True), ("hive", False), (None, False)])
def test_tables_of_another_format_are_not_gone_on_with(tmp_path: Path, there: str | None, refused: bool) -> None:
    """Who changes waltz.format finds it out: the tables stayed what they were."""
    create_project(tmp_path / "p", ["/n"])
    told = [("Provider", "STRING"), (run_recovery._DETAILS, ""), *([] if there is None else [("Provider", there)])]
    rows = [{"col_name": name, "data_type": kind} for name, kind in told]
    catalog = SimpleNamespace(tableExists=lambda name: name == "transactions")
    spark: Any = SimpleNamespace(catalog=catalog, sql=lambda _asked: SimpleNamespace(collect=lambda: rows))
    if not refused:
        run_recovery.check_format(spark, open_project(tmp_path / "p"))
        return
    with pytest.raises(PipelineError, match="its format is delta, and waltz"):
        run_recovery.check_format(spark, open_project(tmp_path / "p"))


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("key STRING, value STRING", ""),
        ("Value STRING, KEY STRING", ""),
        ("key STRING, value BIGINT", ""),  # Spark tells that
        ("key STRING", "it lacks value"),
        ("key STRING, val STRING, at DATE", "it lacks value, and SCHEMA lacks val, at"),
        ("key STRING, value STRING, More STRING", "SCHEMA lacks More"),
    ],
)
def test_a_decoder_with_other_columns_does_not_go_on_with_the_tables_of_before(
    tmp_path: Path, there: str, words: str
) -> None:
    """A run said that all is well, and files of `state` had different columns: readers saw those of one of them."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    create_project(tmp_path / "p", ["/n"])
    columns = parse_columns(f"partition INT, decoded STRUCT<{there}>")
    catalog = SimpleNamespace(tableExists=lambda name: name == "transactions")
    spark: Any = SimpleNamespace(catalog=catalog, table=lambda _: SimpleNamespace(schema=columns))
    if not words:
        run_recovery.check_columns(spark, open_project(tmp_path / "p"))
        return
    with pytest.raises(PipelineError, match=f"another SCHEMA than that of decoder.py: {words};") as refused:
        run_recovery.check_columns(spark, open_project(tmp_path / "p"))
    assert (refused.value.status, "--full-refresh transactions" in f"{refused.value.advice}") == ("usage", True)
    catalog.tableExists = lambda _: False
    run_recovery.check_columns(spark, open_project(tmp_path / "p"))


@pytest.mark.parametrize(
    ("options", "looks"),
    [
        (RunOptions(), True),
        (RunOptions(full_refresh=("state",)), True),
        (RunOptions(refresh=("quarantine",)), True),
        (RunOptions(full_refresh=("records",)), True),  # with quarantine
        (RunOptions(full_refresh=("tallies",), complete=True), True),
        (RunOptions(refresh=("records", "tallies")), False),
        (RunOptions(full_refresh=("transactions",)), False),
        (RunOptions(full_refresh_all=True), False),
        (RunOptions(dry_run=True), False),
    ],
)
def test_columns_are_compared_where_what_the_decoder_made_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: RunOptions, looks: bool
) -> None:
    create_project(tmp_path / "p", ["/n"])
    program = _Program(monkeypatch)
    for name in ("table_rows", "lacking_rows", "taken_since"):
        monkeypatch.setattr(running, name, lambda *_: ())
    running.run_at(program.server, open_project(tmp_path / "p"), options, print)
    assert program.looked == ["columns"] * looks


def run_here(directory: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool = False) -> None:
    """A run of which Spark has nothing to do."""
    with monkeypatch.context() as patch:
        patch.setattr(running, "need_pyspark", lambda: None)
        patch.setattr(running, "serving", lambda *_: nullcontext())
        patch.setattr(running, "run_at", lambda *_: None)
        running.run_pipeline(open_project(directory), RunOptions(dry_run=dry_run), print)


def write_own_paths(directory: Path, before: Path) -> None:
    for one in (directory / "spark-pipeline.yml", directory / "conf" / "spark-defaults.conf"):
        one.write_text(one.read_text().replace(f"{before}", f"{directory}"))


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_a_copy_of_a_project_is_not_run_with_the_checkpoints_of_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_checkpoints: bool, recorded: bool
) -> None:
    """What its run read was in its own `state`, and never in that of the other one, whose checkpoint said that it was."""
    build_directory(tmp_path / "n", {0: 1})
    project, copy = tmp_path / "p", tmp_path / "q"
    create_project(project, [str(tmp_path / "n")])
    if recorded:
        run_here(project, monkeypatch)
    (project / "storage" / "metastore").mkdir(parents=True)
    shutil.copytree(project, copy, ignore=None if with_checkpoints else shutil.ignore_patterns("storage"))
    with pytest.raises(RefusedError, match=f"project in {project}: .* is a copy, or was moved") as refused:
        run_here(copy, monkeypatch)
    assert f"write {copy} in place of {project} in spark-pipeline.yml and in conf/" in f"{refused.value.advice}"
    assert f"remove {copy}/storage: " in f"{refused.value.advice}"
    run_here(project, monkeypatch)
    write_own_paths(copy, project)
    if with_checkpoints and recorded:
        with pytest.raises(RefusedError, match="is a copy, or was moved"):  # its catalog has the other one's places
            run_here(copy, monkeypatch)
    shutil.rmtree(copy / "storage", ignore_errors=True)
    for one in (copy, project, copy):
        run_here(one, monkeypatch)


def test_a_project_that_was_moved_makes_no_tables_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path / "n", {0: 1})
    project, moved = tmp_path / "p", tmp_path / "q"
    create_project(project, [str(tmp_path / "n")])
    run_here(project, monkeypatch, dry_run=True)
    assert not (project / "storage").exists()
    run_here(project, monkeypatch)
    project.rename(moved)
    with pytest.raises(RefusedError, match=f"{moved}/storage is that of the project in {project}"):
        run_here(moved, monkeypatch)
    assert not project.exists()
    moved.rename(project)
    run_here(project, monkeypatch)


def test_a_project_behind_a_link_may_move_with_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path / "n", {0: 1})
    link, disk = tmp_path / "lake", tmp_path / "disk"
    link.symlink_to(disk)
    disk.mkdir()
    create_project(link, [str(tmp_path / "n")])
    run_here(disk, monkeypatch)
    disk.rename(tmp_path / "other")
    link.unlink()
    link.symlink_to(tmp_path / "other")
    for one in (link, tmp_path / "other"):
        run_here(one, monkeypatch)


def test_checkpoints_elsewhere_are_of_one_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_directory(tmp_path / "n", {0: 1})
    project, other = tmp_path / "p", tmp_path / "q"
    create_project(project, [str(tmp_path / "n")])
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(f"{project}/storage", f"{tmp_path}/ssd/checkpoints"))
    for _ in range(2):
        run_here(project, monkeypatch)
    shutil.copytree(project, other, ignore=shutil.ignore_patterns("storage"))
    with pytest.raises(RefusedError, match="ssd/checkpoints is that of the project in") as refused:
        run_here(other, monkeypatch)
    assert "write another storage in spark-pipeline.yml, and" in f"{refused.value.advice}"


def test_whose_checkpoints_they_are_is_not_guessed_where_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path / "n", {0: 1})
    create_project(tmp_path / "p", [str(tmp_path / "n")])
    (tmp_path / "p" / "storage" / "project").mkdir(parents=True)
    with pytest.raises(DiskReadError, match="storage/project"):
        run_here(tmp_path / "p", monkeypatch)


@pytest.mark.parametrize(
    ("files", "held", "kept"),
    [
        (("db.lck", "dbex.lck", "log", "seg0", "tmp"), False, False),
        (("db.lck", "dbex.lck", "log", "seg0", "tmp"), True, True),
        (("db.lck", "dbex.lck", "log", "seg0", "tmp", "service.properties"), False, True),
        (("tmp",), False, True),
    ],
)
def test_half_a_catalog_that_a_kill_left_is_removed(
    tmp_path: Path, files: tuple[str, ...], held: bool, kept: bool
) -> None:
    """Derby refuses one without its properties, which it writes last; one that another process is making stays."""
    create_project(tmp_path / "p", ["/n"])
    project = open_project(tmp_path / "p")
    run_recovery.remove_partial_catalog(project)
    catalog = tmp_path / "p" / "storage" / "metastore"
    assert f"databaseName={catalog};" in defaults_of(tmp_path / "p")["spark.hadoop.javax.jdo.option.ConnectionURL"]
    catalog.mkdir(parents=True)
    for one in files:
        (catalog / one).touch()
    script = "import fcntl, sys; held = open(sys.argv[1], 'r+b'); fcntl.lockf(held, fcntl.LOCK_EX)"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{script}; print(flush=True); sys.stdin.read()", str(catalog / "dbex.lck")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) if held else None  # fmt: skip
    try:
        if holder is not None:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n"
        run_recovery.remove_partial_catalog(project)
        assert catalog.exists() is kept
    finally:
        if holder is not None:
            holder.communicate()


@pytest.mark.parametrize("files", [(), ("tmp",), ("tmp", "db.lck")])
@pytest.mark.parametrize("age", [0, 60, -3600])
def test_a_catalog_without_even_a_lock_is_removed_when_nobody_can_be_making_it(
    tmp_path: Path, files: tuple[str, ...], age: int
) -> None:
    """Derby refuses a directory that exists, however empty, and every run waited minutes for whoever had it."""
    create_project(tmp_path / "p", ["/n"])
    catalog = tmp_path / "p" / "storage" / "metastore"
    catalog.mkdir(parents=True)
    for one in files:
        (catalog / one).touch()
    began = time.time() - age
    os.utime(catalog, (began, began))
    run_recovery.remove_partial_catalog(open_project(tmp_path / "p"))
    assert catalog.exists() is (age == 0)


def test_another_process_that_has_the_catalog_is_waited_for_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_project(tmp_path / "p", ["/n"])
    project, said, attempts = open_project(tmp_path / "p"), list[str](), list[float]()
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=lambda seconds: None)

    def sql(_: str) -> Any:
        attempts.append(clock.now)
        clock.now += 10.0
        if len(attempts) > 3 and not held:
            return SimpleNamespace(collect=list)
        raise RuntimeError("ERROR XSDB6: Another instance of Derby may have already booted the database")

    monkeypatch.setattr(running, "time", clock)
    spark = cast("Any", SimpleNamespace(sql=sql))
    held = False
    running._wait_for_catalog(spark, project, said.append)
    assert (len(attempts), len(said)) == (4, 1)
    assert "another process has the catalog" in said[0]
    held = True
    with pytest.raises(DirectoryLockedError):
        running._wait_for_catalog(spark, project, said.append)
    assert attempts[-1] - attempts[4] == 60.0


def test_half_a_first_plan_that_a_kill_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses a query of which nothing but that is there; one that has a plan passes such a file over."""
    create_project(tmp_path / "p", ["/n"])
    project, program = open_project(tmp_path / "p"), _Program(monkeypatch)
    server = program.server
    half = [".0.dc834527-b523-41f2-b9d6-12ece7703094.tmp", "..0.dc834527-b523-41f2-b9d6-12ece7703094.tmp.crc"]
    queries = tmp_path / "p" / "storage" / "_checkpoints" / "spark_catalog" / "default"
    kept = {"records": set(), "transactions": {"0", ".0.crc", *half}, "quarantine": set()}
    for name, plans in (("records", half), ("transactions", ["0", ".0.crc", *half]), ("quarantine", [])):
        for folder in ("offsets", "commits", "state/0/offsets"):
            (queries / name / name / "0" / folder).mkdir(parents=True)
        (queries / name / name / "0" / "metadata").touch()
        (queries / name / name / "0" / "state" / "0" / "offsets" / "x").touch()
        for plan in plans:
            (queries / name / name / "0" / "offsets" / plan).touch()
    for options in (RunOptions(dry_run=True), RunOptions()):
        running.run_at(server, project, options, print)
        found = {name: set(os.listdir(queries / name / name / "0" / "offsets")) for name in kept}
        assert found == (kept | {"records": set(half)} if options.dry_run else kept)
    for name in kept:
        assert (queries / name / name / "0" / "metadata").exists()
        assert (queries / name / name / "0" / "state" / "0" / "offsets" / "x").exists(), (
            "what lies deeper is the query's"
        )


def test_an_error_names_the_table_and_what_to_do(tmp_path: Path) -> None:
    create_project(tmp_path / "p", ["/n"])
    project = open_project(tmp_path / "p")
    lines = [
        "2026-01-01 00:00:00: Flow 'spark_catalog.default.records' has FAILED.",
        "Error: [STREAM_FAILED] Query [id = x] terminated with exception: ...",
        "waltzctl.engine.errors.StalePlanError: /n, partition 0: it was truncated; compare",
    ]
    error = run_failure(project, lines)
    assert (error.status, error.message) == (
        "refused",
        f"{tmp_path / 'p'}, table records: /n, partition 0: it was truncated; compare",
    )
    assert f"pipeline run {tmp_path / 'p'} --full-refresh records" in str(error.advice)
    lost = DamageError(
        "failOnDataLoss: transactions are lost in 2 places\n  /n/0: segment-gap: one\n  /n/1: other", advice="mend it"
    )
    told = run_failure(
        project, [*lines[:2], *f"waltzctl.engine.errors.DamageError: {lost}".splitlines(), "\tat org.x", "  y"]
    )
    assert (told.status, told.message) == ("damaged", f"{tmp_path / 'p'}, table records: {lost}")
    other = run_failure(project, lines[:2])
    assert (other.status, "STREAM_FAILED" in other.message) == ("io-error", True)
    assert run_failure(project, []).status == "io-error"
    types = run_failure(project, ["pyspark.errors.X: [CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE] Failed to merge"])
    assert types.status == "usage"
    assert f"pipeline run {tmp_path / 'p'} --full-refresh transactions" in str(types.advice)
    empty = run_failure(
        project, [lines[0], 'Error: Cannot invoke "json()" because "this.lastOffsetForTriggerAvailableNow" is null']
    )
    assert "none of the transactions is known as committed yet" in str(empty)
    assert "low-water marks" in str(empty.advice)


@pytest.mark.parametrize(
    "error",
    [
        history_changed("/n", 0, Anchor(7), None, 5),
        history_changed("/n", 0, Anchor(7), Anchor(7), None),
        issued_again("/n", 0, Anchor(7), 5),
    ],
)
def test_a_history_that_changed_has_the_remedy_of_a_pipeline_and_not_that_of_a_stream(
    tmp_path: Path, error: WaltzError
) -> None:
    create_project(tmp_path / "p", ["/n"])
    lines = ["2026-01-01 00:00:00: Flow 'c.d.records' has FAILED.", f"waltzctl.engine.errors.StalePlanError: {error}"]
    told = run_failure(open_project(tmp_path / "p"), lines)
    assert (told.status, told.message) == ("refused", f"{tmp_path / 'p'}, table records: {error.message}")
    assert str(told.advice).endswith("--full-refresh records")


def test_an_error_names_the_cause_that_spark_tells_behind_the_query(tmp_path: Path) -> None:
    create_project(tmp_path / "p", ["/n"])
    said = [  # of Spark 4.3, where the disk is full
        "2026-01-01 00:00:00: Flow 'spark_catalog.default.records' has FAILED.",
        "Error: [STREAM_FAILED] Query [id = x] terminated with exception: [TASK_WRITE_FAILED] Task failed while writing rows",
        "=== Streaming Query ===",
        "Identifier: spark_catalog.default.records [id = x, runId = y]",
        "Current Committed Offsets: {}",
        "Current Available Offsets: {" + "o" * 3000 + "}",
        "",
        "Current State: ACTIVE",
        "Thread State: RUNNABLE",
        "",
        "Logical Plan:",
        "~WriteToMicroBatchDataSourceV1 " + "c" * 3000,
        "+- ~StreamingDataSourceV2ScanRelation",
        "",
        "[TASK_WRITE_FAILED] Task failed while writing rows",
        "Unable to close resource",
        "java.io.IOException: No space left on device",
        "2026-01-01 00:00:01: Flow spark_catalog.default.transactions has COMPLETED.",
    ]
    message = run_failure(open_project(tmp_path / "p"), said).message
    assert (
        "table records: Error: [STREAM_FAILED] Query [id = x] terminated with exception: [TASK_WRITE_FAILED]" in message
    )
    assert message.endswith("Unable to close resource java.io.IOException: No space left on device")
    assert len(message) < 500


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text()))


def test_a_run_answers_with_gaps_and_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "p", ["/n"])
    gap = IncompleteRange("/n", 3, "damaged", 5, None, "record-checksum", "waltzctl recover /n", elsewhere=False)
    report = running.RunReport(tmp_path / "p", (), (gap,), 1.5)
    monkeypatch.setattr(running, "run_pipeline", lambda _project, _options, _say: report)
    answer = invoke("pipeline", "run", tmp_path / "p", "--require", "complete", "--format", "ndjson")
    assert answer.status == 4
    lack, summary = answer.objects
    schema("pipeline-gap").validate(lack)
    schema("pipeline-run").validate(summary)
    assert (lack["node"], lack["partition"], lack["first_transaction_id"]) == ("/n", 3, 5)
    assert (summary["complete"], summary["exit_status"]) == (False, 4)


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    answer = invoke("pipeline", "init", tmp_path / "p", "--source", "/n", "--format", "delta", "--format", "json")
    assert answer.status == 0
    said = json.loads(answer.out)
    schema("pipeline-created").validate(said)
    assert said["table_format"] == "delta"
    assert invoke("pipeline", "init", tmp_path / "p", "--source", "/n").status == 13
    for wrong in (["--format", "csv"], ["--format", "delta", "--format", "iceberg"], []):
        given = ["--source", "/n", *wrong] if wrong else []
        assert invoke("pipeline", "init", tmp_path / "q", *given).status == 2


def test_a_project_of_a_cluster_reads_its_nodes(tmp_path: Path) -> None:
    where = tmp_path / "metadata"
    assert invoke("cluster", "create", "--metadata", where, "--partitions", 1).status == 0
    none = invoke("pipeline", "init", tmp_path / "p", "--metadata", where)
    assert (none.status, "no source" in none.err) == (2, True)  # as yet
    for group, node in enumerate(("127.0.0.1:1", "127.0.0.1:3")):
        assert invoke("cluster", "add-node", node, "--group", group, "--metadata", where, "--yes").status == 0
    assert invoke("cluster", "auto-assign", "--group", 1, "--metadata", where, "--yes").status == 0
    made = json.loads(invoke("pipeline", "init", tmp_path / "p", "--metadata", where, "--format", "json").out)
    schema("pipeline-created").validate(made)
    assert (made["sources"], made["metadata"]) == (["waltz://127.0.0.1:4"], str(where))
    project = open_project(tmp_path / "p")
    assert (project.sources, project.metadata) == (("waltz://127.0.0.1:4",), str(where))
    given = json.loads(
        invoke("pipeline", "init", tmp_path / "q", "--metadata", where, "--source", "/n", "--format", "json").out
    )
    assert (given["sources"], given["metadata"]) == (["/n"], str(where))
    assert (
        json.loads(invoke("pipeline", "init", tmp_path / "r", "--source", "/n", "--format", "json").out)["metadata"]
        is None
    )
    assert open_project(tmp_path / "r").metadata is None
    assert invoke("pipeline", "init", tmp_path / "s", "--metadata", tmp_path / "nothing").status == 10
    assert invoke("pipeline", "init", tmp_path / "s", "--metadata", "http://h/x", "--source", "/n").status == 2


def test_an_embedded_store_is_named_for_whoever_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_project(tmp_path / "p", ["/n"], metadata="metadata").metadata == str(tmp_path / "metadata")
    assert create_project(tmp_path / "q", ["/n"], metadata="zk://h:1/w").metadata == "zk://h:1/w"


def test_without_pyspark_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "p", ["/n"])
    monkeypatch.setitem(sys.modules, "pyspark", None)
    answer = invoke("pipeline", "run", tmp_path / "p")
    assert (answer.status, "PySpark is not installed" in answer.err) == (2, True), answer
    assert "pip install 'waltzctl[spark]'" in answer.err


@pytest.mark.parametrize(
    ("source", "setting", "status", "words"),
    [
        ("{tmp}/none", "", 10, "none: no such file or directory"),
        ("waltz://127.0.0.1:{port}", "plaintext=true", 14, "cannot connect: connection refused"),
        ("{tmp}/node", "nonsense=1", 2, "has no option nonsense"),
        ("{tmp}/node", "metadata", 10, "metadata: there is no metadata"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, setting: str, status: int, words: str
) -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

    def serving(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(running, "serving", serving)
    build_directory(tmp_path / "node", {0: 1})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        named = source.format(tmp=tmp_path, port=port)
        create_project(tmp_path / "p", [named], metadata=str(tmp_path / "metadata") if setting == "metadata" else None)
        spec = tmp_path / "p" / "spark-pipeline.yml"
        if "=" in setting:
            spec.write_text(spec.read_text().replace('waltz.options: ""', f'waltz.options: "{setting}"'))
        answer = invoke("pipeline", "run", tmp_path / "p")
    assert (answer.status, words in answer.err) == (status, True), answer
    assert str(spec) in answer.err


@pytest.mark.parametrize(
    "options",
    [
        ["--master", "sc://h:1"], ["--remote", "h:1"], ["--master", "local", "--remote", "sc://h:1"], ["--conf", "x=1"],
        ["--full-refresh", "nothing"], ["--dry-run", "--refresh", "state"], ["--require", "luck"],
        ["--dry-run", "--require", "complete"], ["--dry-run", "--html", "x"],
        ["--refresh", "records", "--require", "complete"], ["--refresh", "records", "--html", "x"],
    ],
)  # fmt: skip
def test_arguments_of_a_run_that_cannot_be_meant(tmp_path: Path, options: list[str]) -> None:
    create_project(tmp_path / "p", ["/n"])
    assert invoke("pipeline", "run", tmp_path / "p", *options).status == 2


def test_a_run_of_what_is_no_project(tmp_path: Path) -> None:
    assert invoke("pipeline", "run", tmp_path).status == 10


def test_a_record_of_refreshes_that_cannot_be_read_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would end with its removal, and tables that were emptied by half would count as whole."""
    create_project(tmp_path / "p", ["/n"])
    project = open_project(tmp_path / "p")
    assert run_recovery.unfinished_refreshes(project) == ()
    run_recovery.record_refreshes(project, ("transactions", "state"))
    assert run_recovery.unfinished_refreshes(project) == ("transactions", "state")

    def fails(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", fails)
        with pytest.raises(OSError, match="Input/output error"):
            run_recovery.unfinished_refreshes(project)
    assert run_recovery.unfinished_refreshes(project) == ("transactions", "state")


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_state_whose_checkpoint_cannot_be_examined_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The files went, and the query went on behind a checkpoint that says what was in them."""
    create_project(tmp_path / "p", ["/n"])
    project = open_project(tmp_path / "p")
    assert project.storage_path is not None
    checkpoint, files = project.storage_path / "_checkpoints" / "state", project.directory / "state"
    for one in (checkpoint, files):
        one.mkdir(parents=True)
    with monkeypatch.context() as patch:
        unexaminable(patch, checkpoint, error=error)
        with pytest.raises(
            PipelineError, match=f"{checkpoint}: it cannot be removed, .*{os.strerror(error)}"
        ) as failed:
            run_recovery.remove_state(project)
    assert failed.value.status == "io-error"
    assert checkpoint.is_dir()
    assert files.is_dir()
    run_recovery.remove_state(project)
    assert not checkpoint.exists()
    assert not files.exists()


@pytest.mark.parametrize("existing", [False, True], ids=["new", "an empty directory"])
@pytest.mark.parametrize("place", [1, 2, 9])
def test_a_project_that_could_not_be_made_whole_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, existing: bool
) -> None:
    """With half of it there `init` was refused the next time, and `run` named `init` as what writes the rest."""
    target = tmp_path / "above" / "p"
    if existing:
        target.mkdir(parents=True)
    count, really = 0, open

    def fills(path: Any, mode: str = "r", **options: Any) -> Any:
        nonlocal count
        if mode == "x" and (count := count + 1) == place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return really(path, mode, **options)

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", fills)
        with pytest.raises(DiskWriteError, match="No space left"):
            create_project(target, ["/n"])
    assert [*tmp_path.rglob("*")] == ([target.parent, target] if existing else [])
    create_project(target, ["/n"])


def test_a_project_that_cannot_be_read_is_none_to_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_project(tmp_path / "p", ["/n"])

    def fails(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(DiskReadError, match=r"spark-pipeline\.yml: cannot read: Input/output error"):
        open_project(tmp_path / "p")
