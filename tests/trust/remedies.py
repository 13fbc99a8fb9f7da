"""Every command that is printed is carried out, literally, and what it prints after that, until nothing is named any more.

An operator runs ``verify`` and takes the first command that it names, with a sound replica in place of REPLICA; then the first
that this command names, and so on; where none is left, ``verify`` again.  What only a person can do, which is to move away a file
that is proven to be nobody's, is done last, and then it goes on.

``python -m tests.trust.remedies SEED...`` tries the directories of some seeds, and shows each step.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trust.damage import Damaged, draw
from tests.trust.injuries_repairs import missing
from tests.trust.judging import Before, kept_and_true, pairs, shown, sound_answer
from tests.trust.layout import CONTROL
from tests.trust.reader import read_directory
from tests.trust.running import SHARED_MEMORY, Said, called
from tests.trust.scene import Tree, clear, plant, read_tree

MOST = 60
"""Commands after which the way is called endless."""
HANDS = 5
"""How often files are moved away by hand."""
BY_HAND = {"segment-key", "segment-partition", "segment-name", "segment-stray", "special-file"}
"""Findings of a file that no command touches while it is in the way."""
OF_PERSONS = {"state-file-damaged", "partition-empty", "special-file", "unknown-version", "data-checksum"}
"""Findings with which the way may end beside a sound replica: none of them is about a record that is lost."""
NOTHING_LEFT = "nothing to salvage"
LEDGER = ".waltzctl/accepted-losses"
STATUSES = {0, 3, 4, 5, 14}


@dataclass
class Way:
    """What the operator did: each command with what came of it, and the rules that were broken."""

    root: Path
    replica: Path
    fresh: Path
    key: uuid.UUID
    steps: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    gave_up: bool = False
    salvaged: bool = False
    needs_backup: bool = False

    def go(self) -> None:
        """To the end."""
        for _ in range(HANDS):
            self._follow()
            found = {
                one["path"]
                for one in self.left
                if one["code"] in BY_HAND and (one["severity"] == "damage" or one["code"] == "special-file")
            }
            found = {one for one in found if Path(one).parent != self.root and not self.without_control}
            found |= {  # something else stands in its place
                one["path"]
                for one in self.left
                if one["code"] == "partition-directory-missing" and os.path.lexists(one["path"])
            }
            found |= {  # of a partition of which the control file tells nothing
                str(self.root / str(one["partition"]))
                for one in self.left
                if one["code"] == "control-pair-checksum" and self._stands(one["partition"])
            }
            found |= {  # a link to a disk that is not coming back
                one["path"] for one in self.left if one["code"] == "read-error" and os.path.islink(one["path"])
            }
            special = {one["path"] for one in self.left if one["code"] == "special-file"} & found
            found = special or found  # they may keep commands from being printed for the others
            if self.salvaged or self.needs_backup or not found:
                return
            for one in found:
                shutil.rmtree(one) if os.path.isdir(one) and not os.path.islink(one) else os.unlink(one)
            self.moved |= found
            self.steps.append(f"moved away by hand: {sorted(os.path.basename(one) for one in found)}")

    def _stands(self, partition: int) -> bool:
        """Whether something that is no directory stands in a partition's place."""
        path = self.root / str(partition)
        return os.path.lexists(path) and not path.is_dir()

    @property
    def without_control(self) -> bool:
        """Whether no regular file stands in the control file's place: a person brings it back, and all else waits for that."""
        return any((one["code"], one["path"]) == ("special-file", str(self.root / CONTROL)) for one in self.left)

    def _follow(self) -> None:
        tried: list[tuple[str, Tree]] = []
        chain = 0  # where in `tried` the commands begin that follow one another since verify was asked
        named = self._verify()
        while named and not self.salvaged:
            before = read_tree(self.root, ours=False) | self._ledger()
            new = [one for one in named if (one, before) not in tried]
            if (named[0], before) in tried[chain:]:
                self.broken.append(f"a circle: {named[0]}")
            if not new and chain == len(tried):
                return
            if not new:
                chain, named = len(tried), self._verify()
                continue
            if len(self.steps) >= MOST:
                self.broken.append("there is no end of it")
                return
            tried.append((new[0], before))
            named = self._run(new[0])
            if not named and not self.salvaged:
                chain, named = len(tried), self._verify()

    def _ledger(self) -> Tree:
        """The ledger of accepted losses: what is printed depends on it."""
        path = self.root / LEDGER
        return {LEDGER: path.read_bytes()} if path.is_file() else {}

    def _verify(self) -> list[str]:
        said = called("verify", self.root, "--format", "ndjson")
        self.broken += sound_answer(said)
        self.left = said.only("finding")
        self.needs_backup |= any(NOTHING_LEFT in one["message"] for one in self.left)
        return _named(self.left)

    def _run(self, remedy: str) -> list[str]:
        """Run a command as a shell would; returns those that it names."""
        program, command, root, *options = shlex.split(remedy)
        if (program, root) != ("waltzctl", str(self.root)):
            self.broken.append(f"names another directory: {remedy}")
        given = {"REPLICA": str(self.replica), "DIR": str(self.fresh), "KEY": str(self.key)}
        words = [given.get(one, one) for one in options] + ([] if command == "salvage" else ["--yes"])
        clear(self.fresh)
        said = called(command, self.root, *words, "--format", "ndjson")
        self.broken += sound_answer(said)
        self.gave_up |= "--allow-data-loss" in options
        self.salvaged |= command == "salvage"
        results = said.only("result")
        found = [one for result in results for one in result["findings"]] if said.status else []
        self.needs_backup |= any(NOTHING_LEFT in one["message"] for one in found)
        codes = [f"{one['code']} {one['partition']}/{one['segment']}/{one['transaction_id']}" for one in found]
        self.steps.append(f"{remedy} -> {said.status} {[one['applied'] for one in results]} {codes[:6]}")
        if said.status == 12 and "from a backup" in said.err and "waltzctl salvage" not in said.err:
            self.needs_backup = True
            return []
        if said.status == 12 and (salvaging := re.search(r"waltzctl salvage .*", said.err)):
            return [
                salvaging[0]
            ]  # of the control file and the data files nothing told which are the other cluster's: this does
        if said.status == 13 and "a symbolic link leads out of" in said.err and self._links_replaced():
            return [remedy]  # as the refusal says: what the link leads to is in its place now
        if said.status not in STATUSES or not (results or self.salvaged):
            self.broken.append(f"is refused: {remedy}: {said.status} {_why(said)}")
        return _named(found)

    def _links_replaced(self) -> bool:
        """Put what links of data and index files lead to in their places; whether there was one."""
        found = [one for one in self.root.glob("[0-9]*/*") if one.is_symlink() and one.is_file()]
        for one in found:
            content = one.read_bytes()
            one.unlink()
            one.write_bytes(content)
            self.steps.append(f"put in the link's place by hand: {one.name}")
        return bool(found)


def _named(findings: Sequence[dict[str, Any]]) -> list[str]:
    """The commands that are printed below findings, in that order."""
    found = dict.fromkeys(one["remedy"] for one in findings if one["remedy"] is not None)
    return sorted(found, key=lambda remedy: "--allow-data-loss" in remedy.split())


def _why(said: Said) -> str:
    return said.err.strip()[:300]


def remedies(damaged: Damaged, place: Path) -> Iterator[str]:
    """No command is refused or leads back, and no record is lost that was intact here or is in the replica."""
    yield from walked(damaged, place)[1]


def walked(damaged: Damaged, place: Path) -> tuple[Way, list[str]]:
    """The way, and the rules that were broken on it."""
    scene = damaged.scene
    root = plant(scene.files, place / "d")
    before = Before.of(scene, root)
    way = Way(
        root, plant(scene.replica.files(), place / "replica"), place / "fresh", uuid.UUID(bytes=scene.cluster.key)
    )
    way.go()
    broken = way.broken
    if way.salvaged:
        return way, broken
    after = read_directory(root)
    if not way.moved:
        broken += kept_and_true(scene, before, after, "what is printed", loss=way.gave_up)
    lost = pairs(missing(scene, after, before.borne_out)) - (before.disputed if way.gave_up else set())
    if any(one.name == "ledger of accepted losses is junk" for one in damaged.injuries):
        lost -= pairs(scene.given_up)  # nothing tells of them any more
    held = {(log.number, one) for log in scene.replica.logs if log.kept for one in range(len(log.records))}
    # nothing proves that a partition without a directory held anything before its first session
    held -= {pair for pair in held if scene.cluster.logs[pair[0]].session < 0 and way.gave_up}
    left = {one["code"] for one in way.left if one["severity"] != "note"}
    if way.without_control or way.needs_backup:
        return way, broken
    if lost & held and not left & OF_PERSONS:
        broken.append(f"a sound replica has them, and they are not restored ({shown(lost & held)})")
    if left - OF_PERSONS:
        broken.append(f"ends with {sorted(left - OF_PERSONS)}")
    return way, broken


def main(arguments: Sequence[str]) -> int:
    """Try the directories of some seeds; the number of those where a rule is broken."""
    failed = 0
    for word in arguments:
        damaged = draw(int(word))
        with tempfile.TemporaryDirectory(prefix="waltzctl-trust-", dir=SHARED_MEMORY) as place:
            way, broken = walked(damaged, Path(place))
        failed += bool(broken)
        print("\n".join([str(damaged), *(f"    {one}" for one in way.steps), *(f"  ! {one}" for one in broken)]))
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
