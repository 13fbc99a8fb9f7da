"""What every command prints is what the schemas say, in json and in ndjson."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.builders import CREATED, build_directory
from tests.cli.damage import damage_record, index_of, segment_of, tear_tail
from tests.cli.running import ROOT, Answer, invoke
from tests.golden import golden_directories, needs_golden
from tests.inspect.helpers import age
from waltzctl.app import COMMANDS, manual_of
from waltzctl.formats.control import Layout
from waltzctl.formats.request_id import RequestId
from waltzctl.objects.log_objects import LOG_TRACE
from waltzctl.render import plain

SCHEMAS = ROOT / "docs" / "schemas"
OF_CLUSTERS = {"recovery-forecast"}
"""What a command of this list shows of a cluster; tests/cluster has one."""
WITH_NODES = {"serve", "bench", "node", "log-server", "cluster", "log", "pipeline"}
"""What these print is checked where a node, or Spark, runs: test_serve.py, test_bench.py, test_node.py, tests/pipeline."""
INTO_FILES = {"manifest"}
"""What is written into a file: test_verify_manifest.py."""
ARRAYS = {("verify",), ("dump",), ("undo", "--list")}


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("schemas_generate", SCHEMAS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VALIDATORS = {
    path.name.removesuffix(".schema.json"): Draft202012Validator(json.loads(path.read_text()))
    for path in SCHEMAS.glob("*.schema.json")
}


def test_the_committed_schemas_are_those_that_the_generator_writes() -> None:
    written = generator().files()
    assert {path.name for path in SCHEMAS.glob("*.schema.json")} | {"columns.md"} == set(written)
    for name, text in written.items():
        assert (SCHEMAS / name).read_text() == text, f"{name}: run python docs/schemas/generate.py"


def test_the_manual_of_the_data_source_has_the_columns_of_its_views() -> None:
    text = (ROOT / "docs" / "spark-data-source.md").read_text()
    assert text.count("<!-- table: ") == 2
    assert generator().manual(text) == text, "run python docs/schemas/generate.py"


def test_the_page_of_settings_is_the_one_that_the_generator_writes() -> None:
    written = generator().settings_page()
    assert (ROOT / "docs" / "settings.md").read_text() == written, "run python docs/schemas/generate.py"
    assert written.count("`WALTZCTL_SERVE_MIN_FREE`") == 1


@pytest.mark.parametrize("name", sorted(VALIDATORS))
def test_a_schema_is_valid_and_strict(name: str) -> None:
    schema = VALIDATORS[name].schema
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["schema"] == {"const": f"waltzctl.{name}/1"}


def test_every_object_of_a_command_has_a_schema_and_every_schema_a_command() -> None:
    named = {name for command in COMMANDS for name in manual_of(command).objects}
    assert named | {"error"} == set(VALIDATORS), "any command may end with an error"


def test_the_page_says_which_command_prints_an_object() -> None:
    table = (SCHEMAS / "README.md").read_text().partition("\n## Values")[0]
    assert set(re.findall(r"\*\*([a-z-]+)\*\*", table)) == set(VALIDATORS)


def check(answer: Answer, *, array: bool, form: str) -> set[str]:
    """Validate what was printed; gives the types that were seen."""
    if form == "ndjson":
        objects = answer.objects
    else:
        document = json.loads(answer.out)
        assert isinstance(document, list) == array
        objects = document if array else [document]
    for shown in objects:
        assert list(shown)[:2] == ["schema", "type"]
        VALIDATORS[shown["type"]].validate(shown)
    assert answer.out.isascii()
    return {shown["type"] for shown in objects}


def check_object(shown: dict[str, Any]) -> None:
    """Validate one object."""
    VALIDATORS[shown["type"]].validate(shown)


def damaged(path: Path, layout: Layout = Layout.RELEASED) -> Path:
    storage = build_directory(
        path, {0: 60, 1: 120, 2: 20, 4: 0}, num_partitions=6, layout=layout, local_low_water_mark=9
    )
    damage_record(segment_of(storage), 3)
    index_of(storage, 1).unlink()
    tear_tail(segment_of(storage, 1, first=100))
    (storage / "notes.txt").write_text("somebody's")
    control = bytearray((storage / "waltz-storage.ctl").read_bytes())
    control[layout.info_offset(2) + 5] ^= 1
    (storage / "waltz-storage.ctl").write_bytes(control)
    return age(storage)  # of what was just written, one waits for more


def clocked(path: Path) -> Path:
    """A damaged storage of which one segment says that it was created later than the next one."""
    storage = damaged(path)
    segment = segment_of(storage)
    data = bytearray(segment.read_bytes())
    data[4:12] = (CREATED + 1).to_bytes(8, "big")
    segment.write_bytes(data)
    return storage


def page_store(path: Path) -> Path:
    """One with every kind of version, a page that is damaged and a torn log."""
    from tests.pages.stores import crash
    from waltzctl.engine.pages.page_batch import WriteBatch
    from waltzctl.engine.pages.page_storage import PageStorage

    store = PageStorage.create(path)
    store.write(WriteBatch().put_page(1, b"one").put_page(2, b"two").put_ref(3, 1).put_external(4))
    store.write(WriteBatch().put_page(2, b"again").delete(4))
    crash(store)
    (path / "blob" / "blobfile_1").write_bytes(b"One---again")
    with (path / "wal" / "log_1_0").open("ab") as log:
        log.write(b"torn")
    return path


Step = tuple[Callable[[str], Answer], bool, set[str]]


def steps(tmp_path: Path, form: str) -> Iterator[Step]:
    storage = damaged(tmp_path / f"damaged-{form}")
    replica = build_directory(
        tmp_path / f"replica-{form}", {0: 60, 1: 120, 2: 20, 4: 0}, num_partitions=6, local_low_water_mark=9
    )

    def command(*words: object) -> Callable[[str], Answer]:
        return lambda given="": invoke(*words, "--format", form, given=given)

    yield command("create-cluster", tmp_path / f"new-{form}", "--partitions", 2), False, {"cluster"}
    yield command("verify", storage), True, {"finding", "verify-summary"}
    yield command("verify", storage, "--quick"), True, {"finding", "verify-summary"}
    yield command("status", storage), False, {"status"}
    for data in ("base64", "hex", "utf8", "json", "none"):
        yield command("dump", storage, "--data", data), True, {"record", "finding"}
    yield command("dump", storage, "--what", "segments"), True, {"segment", "finding"}
    yield command("dump", storage, "--what", "index", "--partition", "0"), True, {"index-entry"}
    yield command("dump", storage, "--what", "control"), True, {"control", "partition-info", "finding"}
    yield (
        command("stats", clocked(tmp_path / f"clocked-{form}")),
        True,
        {"finding", "stats-partition", "stats-size-class", "stats-client", "stats-header", "stats-bucket", "stats-gap",
         "stats-untimed", "stats-summary"},
    )  # fmt: skip
    yield command("compare", storage, replica), True, {"finding", "partition-comparison", "compare-summary"}
    yield command("rebuild-index", storage, "--dry-run"), False, {"plan"}
    yield command("rebuild-index", storage), False, {"plan"} if form == "json" else {"plan", "error"}
    yield command("rebuild-index", storage, "--yes"), False, {"result"}
    yield command("recover", storage), False, {"plan"}
    yield command("recover", storage, "--yes"), False, {"result"}
    yield command("recover", storage, "--forget-losses", "--dry-run"), False, {"plan"}
    yield command("recover", storage, "--forget-journal", "--dry-run"), False, {"plan"}
    yield command("recover", storage, "--from", replica, "--yes"), False, {"result"}
    yield command("recover", storage, "--yes"), False, {"result"}
    yield command("truncate", storage, "--partition", 2, "--after", 12, "--dry-run"), False, {"plan"}
    yield command("truncate", storage, "--partition", 2, "--after", 12, "--yes"), False, {"result"}
    other = build_directory(tmp_path / f"other-{form}", {0: 5}, layout=Layout.DOCUMENTED)
    yield command("convert", other, "--layout", "released", "--dry-run"), False, {"plan"}
    yield command("convert", other, "--layout", "released", "--yes"), False, {"result"}
    yield command("set-partition", storage, "--partition", 0, "--session-id", 9, "--dry-run"), False, {"plan"}
    yield command("undo", storage, "--list"), True, {"undo-entry"}
    yield command("undo", storage, "--dry-run"), False, {"undo-entry"}
    yield command("undo", storage, "--yes"), False, {"result"}
    yield command("append", replica, "--partition", 2), False, {"append-result"}
    yield (
        lambda _: invoke("append", replica, "--partition", 2, "--format", form, given="a\nb\n"),
        False,
        {"append-result"},
    )
    bare = build_directory(tmp_path / f"bare-{form}", {0: 5}, layout=Layout.DOCUMENTED)
    (bare / "waltz-storage.ctl").unlink()
    yield command("salvage", other, "--control", "--to", bare), False, {"salvaged-control"}
    yield (
        command("salvage", damaged(tmp_path / f"wreck-{form}"), "--to", tmp_path / f"out-{form}"),
        False,
        {"salvage-report"},
    )
    yield from steps_of_vaults(command, tmp_path, other, form)
    store = page_store(tmp_path / f"pages-{form}")
    yield command("pages", "verify", store), True, {"finding", "page-verify-summary"}
    yield command("pages", "status", store), False, {"page-store-status"}
    for what in ("pages", "versions"):
        yield command("pages", "dump", store, "--what", what), True, {"finding", "page-version"}
    yield command("pages", "dump", store, "--what", "log"), True, {"finding", "page-log-edit"}
    yield command("pages", "dump", store, "--what", "free"), True, {"finding", "page-free-range"}
    yield command("pages", "gc", store), False, {"page-gc-result"}
    yield command("pages", "salvage", store, "--to", tmp_path / f"pages-to-{form}"), False, {"page-salvage-report"}


def steps_of_vaults(command: Callable[..., Any], tmp_path: Path, source: Path, form: str) -> Iterator[Any]:
    vault = tmp_path / f"vault-{form}"
    yield command("backup", "init", vault), False, {"vault-created"}
    yield command("backup", "create", vault, source), False, {"backup"}
    yield command("backup", "create", vault, source), False, {"backup"}
    yield command("backup", "list", vault), True, {"backup"}
    yield command("backup", "show", vault, "latest"), False, {"backup"}
    yield command("backup", "verify", vault), True, {"verify-summary"}
    yield command("backup", "diff", vault, "latest", "latest"), True, {"backup-difference"}
    yield command("backup", "restore", vault, "latest", "--to", tmp_path / f"back-{form}"), True, {"restored"}
    yield command("backup", "forget", vault, "--keep-last", "1", "--dry-run"), False, {"plan"}
    yield command("backup", "forget", vault, "--keep-last", "1", "--yes"), False, {"result"}
    yield command("backup", "prune", vault), True, {"vault-pruned"}
    yield command("backup", "repair", vault, "--from", source), False, {"vault-repaired"}


@pytest.mark.turns(10)
@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_what_every_command_prints_is_what_the_schemas_say(tmp_path: Path, form: str) -> None:
    seen = set()
    for act, array, expected in steps(tmp_path, form):
        kinds = check(act(""), array=array, form=form)
        assert kinds == expected
        seen |= kinds
    assert seen - {"error"} == {name for command in COMMANDS if manual_of(command).name not in WITH_NODES
                    for name in manual_of(command).objects} - INTO_FILES - OF_CLUSTERS  # fmt: skip


NOWHERE = (
    (("status", "{}"), False),
    (("verify", "{}"), True),
    (("dump", "{}"), True),
    (("compare", "{}", "{}"), True),
    (("stats", "{}"), True),
    (("rebuild-index", "{}"), False),
    (("truncate", "{}", "--partition", "0", "--after", "1"), False),
    (("recover", "{}"), False),
    (("append", "{}", "--partition", "0"), False),
    (("undo", "{}"), False),
    (("undo", "{}", "--list"), True),
    (("undo", "{}", "--prune", "--older-than", "1d"), False),
    (("salvage", "{}", "--to", "{}-out"), False),
    (("serve", "{}"), False),
    (("verify", "waltz://127.0.0.1:1"), True),
    (("node", "127.0.0.1:2", "list"), True),
    (("bench", "127.0.0.1:1"), False),
)


@pytest.mark.parametrize("form", ["json", "ndjson"])
@pytest.mark.parametrize(("words", "array"), NOWHERE, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_an_error_is_an_object_too(words: tuple[str, ...], array: bool, form: str, tmp_path: Path) -> None:
    answer = invoke(*(word.format(tmp_path / "nowhere") for word in words), "--format", form)
    assert answer.status in (10, 14)
    assert check(answer, array=array, form=form) == {"error"}
    document = answer.objects if form == "ndjson" else json.loads(answer.out)
    (error,) = document if isinstance(document, list) else [document]
    assert error["exit_status"] == answer.status
    assert f"waltzctl: error: {error['message']}\n" in answer.err, "people read the same on stderr"


def test_people_are_told_of_an_error_on_stderr_only(tmp_path: Path) -> None:
    for form in ("plain", "table"):
        answer = invoke("status", tmp_path / "nowhere", "--format", form)
        assert answer.out == ""
        assert answer.status == 10


def test_a_refusal_behind_the_plan_it_is_about(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 20})
    words = ("truncate", storage, "--partition", 0, "--after", 12)
    *_, error = invoke(*words, "--format", "ndjson").objects
    assert (error["type"], error["error"], error["exit_status"]) == ("error", "refused", 13)
    assert "not confirmed" in error["message"]
    assert json.loads(invoke(*words, "--format", "json").out)["type"] == "plan", "one document has room for one object"


def test_an_error_carries_the_findings_that_stand_in_the_way(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "storage", {0: 20}, local_low_water_mark=15)
    damage_record(segment_of(storage), 3)
    (error,) = invoke("append", storage, "--partition", 0, "--format", "ndjson", given="x").only("error")
    assert error["error"] == "damaged"
    assert [one["code"] for one in error["findings"]] == ["record-checksum"]


@pytest.mark.turns(10)
def test_plain_columns_stand_still_whatever_is_in_them(tmp_path: Path) -> None:
    columns: dict[str, set[str]] = {}
    for act, _, expected in steps(tmp_path, "plain"):
        answer, width, kinds = act(""), dict[str, int](), set[str]()
        for line in answer.out.splitlines():
            kind, *rest = line.split("\t")
            if kind.startswith("# ") and rest:
                assert kind == "# record" or kind[2:] not in width, f"a second line of columns: {line}"
                width[kind[2:]] = len(rest)
                columns.setdefault(kind[2:], set()).add("\t".join(rest))
            elif not kind.startswith("#"):
                assert len(rest) == width[kind]
                kinds.add(kind)
        assert expected - {"error"} <= kinds, "people read errors on stderr"
    del columns["record"]  # its last columns are those that --data asks for, and data_b64 where data is no text
    assert {kind: found for kind, found in columns.items() if len(found) > 1} == {}


def test_plain_columns_stand_still_where_nobody_knows_who_appended() -> None:
    known = SimpleNamespace(
        partition=0, transaction_id=5, request_id=RequestId(7, 1, 0, 42), header=3, committed=True, high_water_mark=9,
        server_id=1, session_id=2, replicas=(), accepted_by=1, written_in=2,
    )  # fmt: skip
    unknown = SimpleNamespace(**{**vars(known), "request_id": None})
    ((_, columns),) = plain.rows("log-trace", LOG_TRACE.shown(known))
    assert plain.rows("log-trace", LOG_TRACE.shown(unknown)) == [
        ("log-trace", columns | dict.fromkeys(name for name in columns if name.startswith("request_id.")))
    ]


@pytest.mark.turns(8)
@pytest.mark.parametrize("layout", list(Layout))
def test_control_files_that_are_hardly_there(tmp_path: Path, layout: Layout) -> None:
    storage = build_directory(tmp_path / "s", {0: 5}, layout=layout)
    control = storage / "waltz-storage.ctl"
    whole = control.read_bytes()
    for size in (0, 100, 128, 150, len(whole) - 1):
        control.write_bytes(whole[:size])
        for words in (
            ["verify", storage],
            ["dump", control],
            ["dump", storage],
            ["dump", storage, "--what", "segments"],
        ):
            answer = invoke(*words, "--format", "json")
            sound = words[0] == "dump" and words[1] == storage  # the records and segments themselves are
            assert answer.status in ((0, 4) if sound else (4,))
            check(answer, array=True, form="json")
        answer = invoke("status", storage, "--format", "json")
        assert answer.status == 4
        check(answer, array=False, form="json")
    control.unlink()
    check(invoke("verify", storage, "--format", "json"), array=True, form="json")
    check(invoke("status", storage, "--format", "json"), array=False, form="json")


@pytest.mark.turns(10)
@needs_golden
@pytest.mark.parametrize("directory", golden_directories(), ids=lambda path: path.name)
def test_directories_of_the_release(directory: Path) -> None:
    for words in (["verify", directory], ["dump", directory, "--limit", 200], ["dump", directory, "--what", "control"],
                  ["dump", directory, "--what", "segments"], ["dump", directory, "--what", "index", "--limit", 50]):  # fmt: skip
        check(invoke(*words, "--format", "json"), array=True, form="json")
    check(invoke("status", directory, "--format", "json"), array=False, form="json")
