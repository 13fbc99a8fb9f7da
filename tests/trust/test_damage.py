"""The generator of damage: every injury is drawn, shows what it says, and comes again from its seed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.running import ROOT
from tests.trust.damage import draw
from tests.trust.injuries import REGISTER
from tests.trust.running import SHARED_MEMORY, called
from tests.trust.scene import plant, read_tree
from tests.trust.test_trust import DIRECTORIES
from waltzctl.engine.catalogue import OF_CLUSTERS, OF_PAGE_STORES
from waltzctl.engine.findings import Code

NOT_OF_A_DIRECTORY = {
    "read-error": "needs a disk that fails: tests/storage and tests/inspect have one",
    "seen-from-outside": "said of a node, seen through its port",
    "journal-pending": "of a directory with a commit journal in force: tests.trust.pending draws them",
    "replica-differs": "said of two directories that are compared",
    "manifest-differs": "said of a directory and its manifest, as are the others of the name",
    "manifest-extra-file": "",
    "manifest-grown": "",
    "manifest-missing-file": "",
    "manifest-signature": "",
    "released-refuses": "said only where verify is asked for the release (--for released), as are the next two",
    "released-loses": "",
    "released-blocks": "",
}
"""Codes that no single directory can show, and why."""


@pytest.fixture(scope="module")
def drawn() -> Counter[str]:
    """How often each injury strikes in the default run."""
    return Counter(one.name for seed in range(DIRECTORIES) for one in draw(seed).injuries)


@pytest.mark.turns(10)
def test_every_injury_is_drawn(drawn: Counter[str]) -> None:
    assert [name for name in REGISTER if not drawn[name]] == []


@pytest.mark.turns(8)
def test_every_code_that_a_directory_can_show_is_drawn() -> None:
    """By verify, of a directory of the default run.  A new code of the catalogue gets an injury that shows it."""
    left = {str(code) for code in Code} - set(NOT_OF_A_DIRECTORY) - {str(code) for code in OF_PAGE_STORES | OF_CLUSTERS}
    hidden: set[str] = set()  # what an injury shows when it is alone; here another one may have hidden it
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as place:
        for seed in range(DIRECTORIES):
            damaged = draw(seed)
            shown = left & {code for one in damaged.injuries for code in one.shows}
            if not shown:
                continue
            hidden |= shown
            left -= called("verify", plant(damaged.scene.files, Path(place) / f"{seed}"), "--format", "ndjson").codes
            if not left:
                return
    assert sorted(left - hidden) == []


@pytest.mark.turns(10)
@pytest.mark.parametrize("name", [name for name, one in REGISTER.items() if one.shows & {str(code) for code in Code}])
def test_an_injury_alone_is_called_what_it_says(name: str, tmp_path: Path) -> None:
    """Where it strikes is a matter of chance, and some places have other names: one of a few directories shows it."""
    told = []
    for seed in range(8):
        damaged = draw(seed, [name])
        codes = called("verify", plant(damaged.scene.files, tmp_path / f"{seed}"), "--format", "ndjson").codes
        if codes & REGISTER[name].shows:
            return
        told.append(f"{damaged}\n  shows {sorted(codes)}")
    pytest.fail("\n".join(told))


def test_a_seed_gives_the_same_directory_every_time() -> None:
    for seed in range(0, 60, 7):
        first, second = draw(seed).scene, draw(seed).scene
        ours = [name for name in first.files if name.startswith(".waltzctl")]  # a repair has its time in its name
        assert {k: v for k, v in first.files.items() if k not in ours} == {
            k: v for k, v in second.files.items() if not k.startswith(".waltzctl")
        }
        assert first.told == second.told


def test_the_command_builds_the_directory_of_a_failure(tmp_path: Path) -> None:
    """As printed with a failure."""
    seed = next(one for one in range(50) if len(draw(one).injuries) == 2)
    damaged = draw(seed)
    command = [sys.executable, "-m", "tests.trust.damage", str(seed), str(tmp_path / "d")]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert damaged.scene.told[0] in done.stdout
    files = {name: node for name, node in read_tree(tmp_path / "d" / "damaged").items() if isinstance(node, bytes)}
    assert files == {name: node for name, node in damaged.scene.files.items() if isinstance(node, bytes)}
