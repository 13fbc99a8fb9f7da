"""What a verification is asked for, and what it says in the end."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity, status_of


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """The manifest of the directory: compared with where there is one at `path`, else written there.

    `key`: an Ed25519 key in PEM form, to sign with or to check the signature; `tool`: what writes it.
    """

    path: PurePath
    key: PurePath | None = None
    tool: str = "waltzctl"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How much is checked, and how.

    `partitions`: only these.  `quick`: structure, index and both ends of each segment, without reading the data.  `sample`:
    the fraction of the data that is read, above 0 and up to 1; `sample_seed` chooses which, and None is another each time (with
    `resume` the one of the run that is continued).  `max_duration`: seconds.
    `limit_rate`: bytes per second.  `resume`: a file that remembers the finished segments; it must not lie inside what is
    inspected.  `threads`: None is one for each processor.
    """

    partitions: Collection[int] | None = None
    quick: bool = False
    sample: float | None = None
    max_duration: float | None = None
    limit_rate: int | None = None
    resume: PurePath | None = None
    threads: int | None = None
    sample_seed: int | None = None
    ends_only: bool = False
    """With `quick`: leave the bodies of the indexes unread too."""
    for_released: bool = False
    """Also say whether release 0.13.2 would start on each storage directory."""
    exclusive: bool = False
    """The caller holds the directory's lock: whatever looks half-written is."""
    manifest: ManifestRequest | None = None
    """Compare the directory with its manifest, or write one."""

    def check(self) -> None:
        """Raise InvalidRequestError for a value that cannot be meant."""
        if self.sample is not None and not 0 < self.sample <= 1:
            raise InvalidRequestError(f"the sample must be above 0 and up to 100 %, not {self.sample:%}")
        if self.quick and self.sample is not None:
            raise InvalidRequestError("quick reads no data, so there is nothing to sample; ask for one of the two")
        if self.max_duration is not None and not self.max_duration >= 0:
            raise InvalidRequestError(f"the duration must not be negative: {self.max_duration} s")
        if self.limit_rate is not None and self.limit_rate <= 0:
            raise InvalidRequestError(f"the rate must be above 0, not {self.limit_rate} bytes per second")
        if self.threads is not None and self.threads < 1:
            raise InvalidRequestError(f"at least one thread is needed, not {self.threads}")
        if self.manifest is not None:
            self._check_manifest()

    def seeded(self) -> VerifyOptions:
        """These options, with a seed drawn where a sample is wanted and nobody chose it."""
        if self.sample is None or self.sample_seed is not None:
            return self
        return replace(self, sample_seed=secrets.randbits(63))

    def _check_manifest(self) -> None:
        """A manifest speaks of every byte; whatever leaves some unread makes it a half-truth."""
        for given, why in (
            (self.quick, "quick reads no data"),
            (self.partial, "a sample leaves data unread"),
            (self.partitions is not None, "some partitions leave the others unread"),
            (self.resume is not None, "resume passes over what was read before"),
        ):
            if given:
                raise InvalidRequestError(
                    f"a manifest has the hash of every file, and {why}", advice="ask for one of the two"
                )

    @property
    def partial(self) -> bool:
        """Whether parts of the data are left out on purpose."""
        return self.quick or (self.sample is not None and self.sample < 1)


ENDS_ONLY = VerifyOptions(quick=True, ends_only=True)
"""For whoever asks of a segment only where it begins and ends."""


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """What a verification found, in numbers.

    `status` is clean, repairable or damaged; `exit_status_name` the name of the exit status.  `bytes` counts what was read
    and checked; `damage`, `repairable` and `notes` count findings.  `complete` is False when data was left unread: by quick
    or sample, by a time limit, or by an interrupt.  `manifest`, where one was asked for: *written*, *not-written* (the directory
    is not clean, or was not read to its end), *matches*, *differs*, *not-compared* (cut short), *not-believed* (it is damaged, or
    not signed as it should be).  `released_starts`: whether release 0.13.2 would start on every directory; None when that was not
    asked for, or not answered before the end.
    """

    status: str
    exit_status_name: str
    partitions: int
    segments: int
    records: int
    bytes: int
    damage: int
    repairable: int
    notes: int
    elapsed_seconds: float
    complete: bool
    manifest: str | None = None
    released_starts: bool | None = None


@dataclass(slots=True)
class Tally:
    """Counts findings as they pass."""

    damage: int = 0
    repairable: int = 0
    notes: int = 0
    read_errors: int = 0

    def add(self, finding: Finding) -> None:
        """Count one."""
        if finding.severity is Severity.DAMAGE:
            self.damage += 1
            self.read_errors += finding.code is Code.READ_ERROR
        elif finding.severity is Severity.REPAIRABLE:
            self.repairable += 1
        else:
            self.notes += 1

    @property
    def status(self) -> str:
        """clean, repairable or damaged."""
        return status_of(Severity.DAMAGE if self.damage else Severity.REPAIRABLE if self.repairable else None)

    @property
    def exit_status_name(self) -> str:
        """As `status`; io-error when nothing worse is known than that something could not be read."""
        return "io-error" if 0 < self.damage == self.read_errors else self.status
