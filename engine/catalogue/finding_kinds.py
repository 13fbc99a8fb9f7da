"""The kinds of findings: codes, severities, and the form of an entry in the catalogue.

Codes and severities are fixed (scripts depend on them); sentences may change.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How bad a finding is.  `DAMAGE`: data is lost or doubtful; `REPAIRABLE`: nothing is lost; `NOTE`: worth knowing."""

    DAMAGE = "damage"
    REPAIRABLE = "repairable"
    NOTE = "note"


class Code(enum.StrEnum):
    """Stable names of findings."""

    CONTROL_FILE_MISSING = "control-file-missing"
    CONTROL_FILE_SIZE = "control-file-size"
    CONTROL_FILE_EXTENDED = "control-file-extended"
    CONTROL_STRUCT_CHECKSUM = "control-struct-checksum"
    CONTROL_PAIR_CHECKSUM = "control-pair-checksum"
    CONTROL_PAIR_TIE = "control-pair-tie"
    CONTROL_PARTITION_ID = "control-partition-id"
    JOURNAL_PENDING = "journal-pending"
    UNKNOWN_VERSION = "unknown-version"
    PARTITION_DIRECTORY_MISSING = "partition-directory-missing"
    PARTITION_NOT_ASSIGNED = "partition-not-assigned"
    PARTITION_EMPTY = "partition-empty"
    SEGMENT_HEADER_SHORT = "segment-header-short"
    SEGMENT_KEY = "segment-key"
    SEGMENT_PARTITION = "segment-partition"
    SEGMENT_NAME = "segment-name"
    SEGMENT_GAP = "segment-gap"
    SEGMENT_OVERLAP = "segment-overlap"
    RECORD_CHECKSUM = "record-checksum"
    DATA_CHECKSUM = "data-checksum"
    RECORD_ORDER = "record-order"
    RECORD_LENGTH = "record-length"
    TORN_TAIL = "torn-tail"
    ACKNOWLEDGED_MISSING = "acknowledged-missing"
    DURABLE_MISSING = "durable-missing"
    LOSS_ACCEPTED = "loss-accepted"
    ACCEPTED_LOSSES_DAMAGED = "accepted-losses-damaged"
    STATE_FILE_DAMAGED = "state-file-damaged"
    INDEX_MISSING = "index-missing"
    INDEX_SHORT = "index-short"
    INDEX_LONG = "index-long"
    INDEX_ENTRY = "index-entry"
    INDEX_HEADER = "index-header"
    INDEX_ORPHAN = "index-orphan"
    RESERVED_NOT_ZERO = "reserved-not-zero"
    UNKNOWN_FILE = "unknown-file"
    READ_ERROR = "read-error"
    REPAIR_INTERRUPTED = "repair-interrupted"
    TEMPORARY_FILE = "temporary-file"
    SPECIAL_FILE = "special-file"
    SEGMENT_STRAY = "segment-stray"
    RELEASED_REFUSES = "released-refuses"
    RELEASED_LOSES = "released-loses"
    RELEASED_BLOCKS = "released-blocks"
    SEEN_FROM_OUTSIDE = "seen-from-outside"
    REPLICA_DIFFERS = "replica-differs"
    MANIFEST_DIFFERS = "manifest-differs"
    MANIFEST_MISSING_FILE = "manifest-missing-file"
    MANIFEST_EXTRA_FILE = "manifest-extra-file"
    MANIFEST_SIGNATURE = "manifest-signature"
    MANIFEST_GROWN = "manifest-grown"
    CLUSTER_MAPS = "cluster-maps"
    PARTITION_WITHOUT_REPLICA = "partition-without-replica"
    PARTITION_WITHOUT_SERVER = "partition-without-server"
    PARTITION_UNHEALTHY = "partition-unhealthy"
    QUORUM_MISSING = "quorum-missing"
    REPLICA_NOT_IN_SESSION = "replica-not-in-session"
    REPLICA_OUT_OF_SERVICE = "replica-out-of-service"
    REPLICA_BEHIND = "replica-behind"
    NODE_UNREACHABLE = "node-unreachable"
    NODE_DIFFERS = "node-differs"
    NODE_KEY = "node-key"
    SERVER_UNREACHABLE = "server-unreachable"
    SERVER_DIFFERS = "server-differs"
    PAGE_CHECKSUM = "page-checksum"
    PAGE_MISSING = "page-missing"
    LOG_RECORD_CHECKSUM = "log-record-checksum"
    LOG_TORN_TAIL = "log-torn-tail"
    LOG_MISSING = "log-missing"
    SPACE_OVERLAP = "space-overlap"
    SPACE_LEAKED = "space-leaked"
    BACKUP_INCOMPLETE = "backup-incomplete"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """The catalogue's entry for a code.

    =============== ==========================================================================================
    `severity`      the usual severity
    `when_harmless` the condition under which the finding is only repairable; None: there is none
    `command`       the command that repairs it, without ``waltzctl`` and the path; None: a person must decide
    `harmless`      the command if the finding is only repairable; None: `command`
    `then`          the next steps, in order, if the finding remains after `command`
    `again`         after other repairs of the partition `command` may succeed at a second attempt
    =============== ==========================================================================================

    In commands, REPLICA stands for the storage directory of an intact replica, DIR for a new directory.
    """

    code: Code
    severity: Severity
    meaning: str
    what_to_do: str
    command: str | None = None
    when_harmless: str | None = None
    harmless: str | None = None
    then: tuple[str, ...] = ()
    again: bool = False

    def remedies(self, severity: Severity) -> tuple[str, ...]:
        """The commands to run, in order, for a finding of this severity."""
        first = self.harmless if severity is Severity.REPAIRABLE and self.harmless is not None else self.command
        return () if first is None else tuple(dict.fromkeys((first, *self._next)))

    @property
    def _next(self) -> tuple[str, ...]:
        return self.then if self.command is None else (self.command, *self.then)
