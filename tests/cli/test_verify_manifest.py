"""verify --manifest: what is said, written, and answered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.cli.running import invoke, run
from tests.cli.test_schemas import VALIDATORS


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "storage", {0: 60, 2: 20}, local_low_water_mark=9)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private, encoding = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    (tmp_path / "key.pem").write_bytes(
        private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "key.pub").write_bytes(
        private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return tmp_path / "key.pem", tmp_path / "key.pub"


def test_a_copy_proves_itself_and_a_changed_one_does_not(
    storage: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    file = tmp_path / "m"
    before = digest(storage)
    answer = invoke("verify", storage, "--manifest", file, "--manifest-key", keys[0])
    assert (answer.status, digest(storage)) == (0, before)
    assert "The manifest was written." in answer.out
    text = file.read_bytes()
    document = json.loads(text)
    VALIDATORS["manifest"].validate(document)
    assert document["tool"].startswith("waltzctl ")
    copy = tmp_path / "copy"
    shutil.copytree(storage, copy)
    answer = invoke("verify", copy, "--manifest", file, "--manifest-key", keys[1], "--format", "ndjson")
    assert (answer.status, [one["type"] for one in answer.objects]) == (0, ["verify-summary"])
    assert answer.objects[0]["manifest"] == "matches"
    damage_record(segment_of(copy), 20)
    answer = invoke("verify", copy, "--manifest", file, "--manifest-key", keys[1], "--format", "ndjson")
    assert (answer.status, answer.objects[-1]["manifest"]) == (4, "differs")
    assert {one["code"] for one in answer.only("finding")} == {"record-checksum", "manifest-differs"}
    assert file.read_bytes() == text


def test_it_is_written_by_a_process_of_its_own(storage: Path, tmp_path: Path) -> None:
    file = tmp_path / "m"
    assert run("verify", storage, "--manifest", file, "-q").status == 0
    assert run("verify", storage, "--manifest", file, "-q").out == ""


def test_without_a_manifest_the_summary_says_null(storage: Path) -> None:
    assert invoke("verify", storage, "--format", "ndjson").objects[-1]["manifest"] is None


def test_what_cannot_be_meant_is_a_usage_error(storage: Path, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    file = tmp_path / "m"
    for words, why in (
        (["--manifest", file, "--quick"], "quick reads no data"),
        (["--manifest", file, "--sample", "10%"], "a sample leaves"),
        (["--manifest", file, "--partition", "0"], "some partitions"),
        (["--manifest", file, "--resume", tmp_path / "r"], "resume passes over"),
        (["--manifest", storage / "m"], "lies inside"),
        (["--manifest-key", keys[0]], "no --manifest"),
        (["--manifest", file, "--manifest-key", keys[1]], "public key"),
        (["--manifest", file, "--manifest-key", segment_of(storage)], "no key in PEM form"),
        (["--manifest", ""], "empty"),
    ):
        answer = invoke("verify", storage, *words)
        assert answer.status == 2, words
        assert why in " ".join(answer.err.split()), answer.err
    answer = invoke("verify", storage, storage / "0", "--manifest", file)
    assert answer.status == 0, "the same directory, named twice over, is one"
    assert invoke("verify", "waltz://127.0.0.1:1", "--manifest", file).status == 2


def test_a_directory_that_is_not_clean_says_that_nothing_was_written(storage: Path, tmp_path: Path) -> None:
    damage_record(segment_of(storage), 20)
    answer = invoke("verify", storage, "--manifest", tmp_path / "m")
    assert answer.status == 4
    assert "No manifest was written" in answer.out
    assert not (tmp_path / "m").exists()
