"""The remedy of a finding: the next command line that a person runs, and what remains to be run after a command."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.catalogue import CATALOGUE, Code, Severity
from waltzctl.engine.shell_words import shell_join

FORGETTING = frozenset({"--forget-losses", "--forget-journal"})
"""Options with which a command only removes a note, and repairs nothing."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run, and the names of its options: a finding that remains after it must not name it as the remedy."""

    command: str
    options: frozenset[str] = frozenset()

    def covers(self, remedy: str) -> bool:
        """Whether this command is that of `remedy` and had all of its options; what only forgets has mended nothing."""
        command, *rest = remedy.split()
        wanted = {word for word in rest if word.startswith("--")}
        return command == self.command and wanted <= self.options and self.options & FORGETTING <= wanted


class MendedInCopy:
    """Mixin of paths that are only read (a URL, a backup in a vault): the user repairs a copy, which has the same findings."""

    __slots__ = ()

    @property
    def remedy(self) -> str | None:
        """The command line that copies the storage directory into DIR; None where waltzctl has no such command."""
        return None


def remedy_for(
    code: Code,
    storage_directory: PurePath | None,
    partition: int | None,
    severity: Severity | None = None,
    ran: Ran | None = None,
) -> str | None:
    """The command line that is the next step for a finding, or None where a person must decide or the directory is unknown.

    `ran`: the command that was run already and after which the finding remained; the step after it is returned.  What gives
    records up keeps the replica that was named: of a lost end it may hold a part, which comes back then.
    """
    kind = CATALOGUE[code]
    steps = kind.remedies(severity or kind.severity)
    done = max((place for place, one in enumerate(steps, 1) if ran is not None and ran.covers(one)), default=0)
    step = next(iter(steps[done:]), None)
    if step is None or storage_directory is None:
        return None
    said = step.split()
    names = list(itertools.takewhile(lambda word: not word.startswith("--"), said))  # a command, and perhaps its action
    command, options = names[0], said[len(names) :]
    if isinstance(storage_directory, MendedInCopy):
        return storage_directory.remedy
    if ran is not None and "--from" in ran.options and "--allow-data-loss" in options:
        options = ["--from", "REPLICA", *options]
    words = ["waltzctl", *names, str(storage_directory)]
    if partition is not None and command in ("recover", "rebuild-index"):
        words += ["--partition", str(partition)]
    return shell_join(words + options)
