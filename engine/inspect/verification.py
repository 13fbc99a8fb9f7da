"""The options of a verification, and its summary."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity, status_of


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """The manifest of the directory: if the file `path` exists, compare with it, else write it.

    `key`: the path of an Ed25519 key in PEM form, to sign the manifest or to verify its signature.  `tool`: the name and version
    of the program, to be stored in the manifest.
    """

    path: PurePath
    key: PurePath | None = None
    tool: str = "waltzctl"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How much is checked, and how.

    =============== =============================================================================================
    `partitions`    check only these; None: all
    `quick`         check structure, index and both ends of each segment, without reading the data
    `sample`        the fraction of the data that is read, above 0 and up to 1; None: all
    `max_duration`  in seconds
    `limit_rate`    in bytes per second
    `resume`        the state file with the finished segments; not inside of an inspected directory
    `threads`       None: one for each processor
    `sample_seed`   chooses the sample; None: a random one, or with `resume` that of the state file
    `ends_only`     with `quick`: do not check that the entries of the whole index rise, either
    `for_released`  report also whether release 0.13.2 would start on each storage directory
    `exclusive`     the caller holds the directory's lock: half-written records are damage
    `manifest`      compare the directory with its manifest, or write one
    =============== =============================================================================================
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
    for_released: bool = False
    exclusive: bool = False
    manifest: ManifestRequest | None = None

    def check(self) -> None:
        """Raise InvalidRequestError for an invalid value."""
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
        """These options, with a random seed if there is a sample without one."""
        if self.sample is None or self.sample_seed is not None:
            return self
        return replace(self, sample_seed=secrets.randbits(63))

    def _check_manifest(self) -> None:
        """A manifest has the hash of every file, so options that leave bytes unread are refused."""
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
        """Whether parts of the data are left unread on purpose."""
        return self.quick or (self.sample is not None and self.sample < 1)


ENDS_ONLY = VerifyOptions(quick=True, ends_only=True)
"""Options to find out the first and the last record of a segment only."""


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """The summary of a verification.

    =================== =========================================================================================
    `status`            clean, repairable or damaged
    `exit_status_name`  the name of the exit status
    `bytes`             bytes that were read and checked
    `damage`            number of findings of this severity; likewise `repairable` and `notes`
    `complete`          False when data was left unread: by quick or sample, a time limit or an interrupt
    `manifest`          None if not requested; *written*; *not-written* (the directory is not clean, or was not
                        read to its end); *matches*; *differs*; *not-compared* (the verification ended before);
                        *not-believed* (the manifest is damaged, or its signature is missing or wrong)
    `released_starts`   whether release 0.13.2 would start on every directory; None if not requested, or if the
                        verification ended before
    =================== =========================================================================================
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
        """As `status`, but io-error if all findings of severity damage are read errors."""
        return "io-error" if 0 < self.damage == self.read_errors else self.status
