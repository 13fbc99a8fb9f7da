"""The catalogue of findings: every kind of damage or oddity that can be named, how severe it is, and what to do.

One catalogue serves verify, dump, recover, the node's start-up and the manual page: a code is defined here or nowhere.
Codes and severities are fixed (scripts depend on them); sentences may change.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
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


OF_PAGE_STORES = frozenset(
    {
        Code.PAGE_CHECKSUM,
        Code.PAGE_MISSING,
        Code.LOG_RECORD_CHECKSUM,
        Code.LOG_TORN_TAIL,
        Code.LOG_MISSING,
        Code.SPACE_OVERLAP,
        Code.SPACE_LEAKED,
        Code.BACKUP_INCOMPLETE,
    }
)
"""Codes about a page store, and about backups in one."""
OF_CLUSTERS = frozenset(
    {
        Code.CLUSTER_MAPS,
        Code.PARTITION_WITHOUT_REPLICA,
        Code.PARTITION_WITHOUT_SERVER,
        Code.PARTITION_UNHEALTHY,
        Code.QUORUM_MISSING,
        Code.REPLICA_NOT_IN_SESSION,
        Code.NODE_UNREACHABLE,
        Code.NODE_DIFFERS,
        Code.NODE_KEY,
        Code.SERVER_UNREACHABLE,
        Code.SERVER_DIFFERS,
    }
)
"""Codes about a cluster; all others are about a storage directory."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What the catalogue says of a code.

    `severity` is the usual one, and `when_harmless`, where given, says under which condition the finding is only repairable.
    `command` mends it: the words behind ``waltzctl`` without the path, or None where a person must decide.  `harmless` is the
    command where the finding is repairable, if that is another one.  `then` are the next steps, in order, for one who ran
    `command` and still has the finding; `again`: once something else is mended, `command` may help after all.  REPLICA stands
    for the storage directory of an intact replica, DIR for a new one.
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
        """What helps, the first step first."""
        first = self.harmless if severity is Severity.REPAIRABLE and self.harmless is not None else self.command
        return () if first is None else tuple(dict.fromkeys((first, *self._next)))

    @property
    def _next(self) -> tuple[str, ...]:
        return self.then if self.command is None else (self.command, *self.then)


RECOVER, FROM, GIVE_UP = "recover", "recover --from REPLICA", "recover --allow-data-loss"
"""What recover can do: alone, with a replica, and at the price of what is lost."""
FORGET = "recover --forget-losses"
"""What ends the reminder of a loss that was accepted."""


def _kinds() -> Iterable[FindingKind]:
    damage, repairable, note = Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE
    yield FindingKind(
        Code.CONTROL_FILE_MISSING, damage,
        "Partition directories are there, the control file is not: sessions, marks and assignment are unknown.",
        "Bring the control file back from a backup of this very node. Without one, salvage the records into a new directory.",
        "salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_FILE_SIZE, damage,
        "The control file's length fits neither layout for the number of partitions in its header.",
        "If only the header's count is wrong, recover restores it from the file's length; otherwise use a backup or salvage.",
        RECOVER, then=("salvage --to DIR",),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_FILE_EXTENDED, repairable,
        "Release 0.13.2 tried to open a directory of the documented layout: it extended the control file with zeros to the length"
        " of its own layout, and failed. Everything that stood in the file is still there and is read as before.",
        "recover cuts the zeros off. Where a release is to open the directory: then convert it to the released layout.",
        "recover",
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_STRUCT_CHECKSUM, repairable,
        "One struct of a partition's pair has a wrong checksum; the other one is in force, which is what the pair is for.",
        "recover writes the invalid struct anew. If it was the newer one, the marks are those of the session before.",
        RECOVER,
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PAIR_CHECKSUM, damage,
        "Both structs of a partition's pair are invalid: its session and marks are lost. Other partitions are not affected.",
        "recover --allow-data-loss writes an initial pair; the records stay, but a Waltz server then truncates the partition.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PAIR_TIE, damage,
        "Both structs are valid and nothing tells which one is newer. A released node refuses to start.",
        "Compare both with dump --what control; recover --allow-data-loss keeps the one with the higher marks.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PARTITION_ID, damage,
        "The partition id that is stored in a partition info is not the info's place. No checksum covers it.",
        "recover writes the id that belongs there when the pair beside it is valid.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.JOURNAL_PENDING, note,
        "The node runs with a commit journal, or crashed with one: acknowledged records may stand there and not yet in their"
        " segments. As damage: the journal, or the file that names it, cannot be had.",
        "The node, started with --journal or without, writes them back before anything else, and so does append; until then no"
        " repair is made. Bring a journal that is gone back. If it is lost for good, recover --forget-journal gives up what stood"
        " only there, and recover --from brings it back from a replica.",
    )  # fmt: skip
    yield FindingKind(
        Code.UNKNOWN_VERSION, damage,
        "A header's format version is not 0, the only one that exists.",
        "If everything else in the file reads well, the version is damaged: recover restores it from the other headers.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_DIRECTORY_MISSING, damage,
        "The partition belongs here, as the control file says or as its session and marks prove, but its directory does not"
        " exist.",
        "Bring the directory back, or recover --from REPLICA what is known to have been in it. Where it was removed on purpose,"
        " take the partition away with its files deleted. If no replica has it, recover --allow-data-loss lets a running"
        " cluster begin anew here.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_NOT_ASSIGNED, note,
        "There are files of a partition that is not assigned to this node.",
        "They were kept when the partition was taken away. Remove them by hand once nobody wants them.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_EMPTY, note,
        "The partition belongs here, and its directory holds no segment.",
        "A partition that never held anything looks like this; the node makes its first segment when it opens it. Where a"
        " session began in it, there was a segment: that is damage, and recover --allow-data-loss begins the log anew.",
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_HEADER_SHORT, damage,
        "A data file is shorter than its header.",
        "A crash during roll-over leaves this at the end of a partition: recover removes the file, no record is lost.",
        FROM, "the segment is the last one and holds no record", harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_KEY, damage,
        "The cluster key in a segment's header is not the control file's.",
        "If the entries of the index, the request ids and every replica agree that the records belong here, the header is damaged"
        " and recover restores it. Otherwise the file comes from another cluster: move it away by hand.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_PARTITION, damage,
        "The partition in a segment's header is not that of the directory it lies in; or it is, and the request ids of"
        " all records name another one, as segments beside it, that partition's own copy or the index confirm.",
        "As for segment-key: restored when its records prove to belong here, otherwise a misplaced file.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_NAME, damage,
        "The first transaction id in a segment's header is not the one in its file name.",
        "As for segment-key; if the first record shows that the header is right, the file was renamed.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_GAP, damage,
        "A segment begins later than the transaction that should follow the segment before it: transactions are missing.",
        "recover --from REPLICA restores them if they were the end of a segment; otherwise copy the partition from a replica.",
        FROM,
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_OVERLAP, damage,
        "A segment begins before the segment in front of it ends: the same transaction ids stand in two files.",
        "A truncation whose deletions did not reach the disk leaves this. recover takes away what stands twice alike, and what"
        " marks, neighbours and replicas speak against; where they are silent or disagree, compare both with dump.",
        RECOVER, then=(FROM, GIVE_UP), again=True,
    )  # fmt: skip
    yield FindingKind(
        Code.RECORD_CHECKSUM, damage,
        "A record's stored checksum is not that of its bytes, and valid records follow it.",
        "recover --from REPLICA restores exactly this record; recover --allow-data-loss splits the segment around it.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.DATA_CHECKSUM, damage,
        "A record is intact, but its data does not agree with the checksum that the client sent with it.",
        "The data was damaged before it was written here. Compare with another replica; recover --from REPLICA takes its record.",
        FROM,
    )  # fmt: skip
    yield FindingKind(
        Code.RECORD_ORDER, damage,
        "A record with a right checksum has an id that is not the next one.",
        "recover --from REPLICA restores missing records; recover --allow-data-loss splits the segment at the gap.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.RECORD_LENGTH, damage,
        "A record's length is negative or points beyond the file, and valid records follow.",
        "As for record-checksum.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.TORN_TAIL, damage,
        "The last record is incomplete or its checksum is wrong, and nothing valid follows.",
        "What a crash leaves behind a write that nobody was told had succeeded: recover cuts it. At or below the local"
        " low-water mark, or in a segment that is not the last, acknowledged data is damaged: recover --from REPLICA.",
        FROM, "in the last segment, above the local low-water mark", harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.ACKNOWLEDGED_MISSING, damage,
        "The partition's last transaction is below its local low-water mark: transactions known to be durable are gone.",
        "Do not let this replica vote. recover --from REPLICA brings them back; if no replica has them, recover"
        " --allow-data-loss lowers the mark and keeps the loss in mind.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.DURABLE_MISSING, damage,
        "The partition ends in front of transactions that were durable here: an index leads behind a checkpoint that was synced"
        " together with the data, or a segment is called after a later transaction.",
        "As for acknowledged-missing. Neither rebuild-index nor append touches what proves the loss.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.LOSS_ACCEPTED, damage,
        "Transactions that recover --allow-data-loss gave up are still missing. The ledger .waltzctl/accepted-losses keeps them.",
        "recover --from REPLICA brings them back, and so does a running cluster that has them. If nobody ever will, recover"
        " --forget-losses ends the reminder; undo takes that back, like the repair that gave them up.",
        FROM, then=(FORGET,),
    )  # fmt: skip
    yield FindingKind(
        Code.ACCEPTED_LOSSES_DAMAGED, damage,
        "The ledger of accepted losses cannot be read in full, so that not every transaction that was given up can be named.",
        "The audit journal .waltzctl/journal.jsonl and the quarantine tell which repairs gave something up. recover"
        " --forget-losses sets the ledger aside once that is known.",
        FORGET,
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_MISSING, repairable, "A segment has no index file. A released node does not start then.",
        "rebuild-index writes it from the data.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_SHORT, repairable, "An index has fewer entries than its segment has records.",
        "Usual after a crash; nodes mend it when they open the segment. rebuild-index does it now.",
        "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_LONG, repairable, "An index has more entries than its segment has records.",
        "Usual after a crash. rebuild-index cuts it.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_ENTRY, repairable, "An index entry is not the offset of its record.",
        "rebuild-index writes the index from the data.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_HEADER, repairable, "An index file's header is short, or disagrees with its data file's.",
        "rebuild-index writes it from the data file.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_ORPHAN, damage,
        "An index file has no data file. In a released node every later append to the partition fails.",
        "Without entries a crash during roll-over left it, and with entries that other segments hold a truncation: recover"
        " removes it. Otherwise the data file is lost: recover --from REPLICA.",
        FROM, "it has no entries, or other segments hold their transactions", harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.RESERVED_NOT_ZERO, note, "Reserved bytes of a header are not zero; nothing reads them.",
        "Harmless, but no release writes this: look for a disk that flips bits.",
    )  # fmt: skip
    yield FindingKind(
        Code.UNKNOWN_FILE, note, "A name that belongs to nothing in a storage directory.",
        "Look at it and move it away; nothing reads it.",
    )  # fmt: skip
    yield FindingKind(
        Code.SPECIAL_FILE, damage,
        "Under the name of a control, data or index file stands a FIFO, socket, device, directory or a link that leads nowhere.",
        "Nothing opens, replaces or removes it. Find out who made it and move it away by hand; then verify again.",
        when_harmless="it stands in the place of an index, which rebuild-index then writes from the data",
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_STRAY, damage,
        "A data file under a name that is not a segment's. A released node opens every name that ends in .seg, and does not"
        " start when it cannot; whoever goes by the names that nodes give does not see what is in it.",
        "If its header, its records and its neighbours prove that it is the partition's own and its place is free, recover"
        " gives it its name. Otherwise look at it with dump and move it away by hand.",
        "recover", "all that it holds stands under the right names too",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_REFUSES, damage,
        "Asked for with verify --for released: release 0.13.2 does not start on this directory. One such place keeps the whole"
        " node down.",
        "The finding names the place and, where one mends it without loss, the command. Do not try a start: it changes files.",
        when_harmless="a command mends it without loss",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_LOSES, damage,
        "Asked for with verify --for released: release 0.13.2 drops something without a word when it starts: it cuts a segment at"
        " the first record that is not good, whatever follows, and writes a short or missing control file anew.",
        "Mend what the other findings name before a released node opens the directory.",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_BLOCKS, repairable,
        "Asked for with verify --for released: release 0.13.2 starts, but will fail at every append once a segment is to begin"
        " where an index without a data file stands.",
        "recover removes an index that says nothing.",
    )  # fmt: skip
    yield FindingKind(
        Code.READ_ERROR, damage, "The system could not read a part of a file.",
        "Copy what still reads with a tool that tolerates errors, then work on the copy.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPAIR_INTERRUPTED, repairable, "A repair was interrupted half-way. Everything it replaced is kept.",
        "undo takes it back; the next command that writes does so as well.", "undo",
    )  # fmt: skip
    yield FindingKind(
        Code.TEMPORARY_FILE, note, "A file was being built when its process ended; it holds nothing that was promised.",
        "The next command that writes the same file removes it.",
    )  # fmt: skip
    yield FindingKind(
        Code.SEEN_FROM_OUTSIDE, note,
        "The storage was read through a node's port, which does not show files, headers, indexes, record checksums and marks of"
        " the control file.",
        "Verify the directory on the node's own machine for the rest; that works beside the running node.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_DIFFERS, damage, "Two replicas hold different records under the same transaction id.",
        "One of them was not told the truth. Find out which, with dump on both, before either becomes the source of a copy.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_DIFFERS, damage, "A file does not hold the bytes that the manifest says it held.",
        "Copy the file again from where the manifest was made. After a repair that was wanted, make a new manifest.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_MISSING_FILE, damage, "The manifest names a file that is not there.",
        "Copy it again from where the manifest was made.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_EXTRA_FILE, damage,
        "A file is there that the manifest does not name, and that did not come by going on at a partition's end.",
        "Look where it comes from; move it away if it does not belong there.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_SIGNATURE, damage,
        "The manifest is damaged, is not signed, or is signed by another key than the one that was named: it proves nothing.",
        "Bring the manifest from where it was made, and the public key from its owner. As a note: it is signed, and no key was"
        " named; give it with --manifest-key.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_GROWN, note,
        "The directory went on being written since the manifest was made. All that it held then is still there, byte for byte.",
        "The manifest does not vouch for what came later; make a new one if that is wanted.",
    )  # fmt: skip
    yield FindingKind(
        Code.PAGE_CHECKSUM, damage,
        "In a page store, the data of a page or of a field of it does not agree with its checksum.",
        "The page is never served. Write it anew from where its data came from; the other pages are not concerned.",
    )  # fmt: skip
    yield FindingKind(
        Code.PAGE_MISSING, damage,
        "In a page store, a page's data lies in a blob file that is not there, or behind its end.",
        "Bring the blob file back from a copy, or write the page anew from where its data came from.",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_RECORD_CHECKSUM, damage,
        "A part of a page store's log is damaged, and records follow that were written later: edits that somebody was promised"
        " may be lost. The store is not opened.",
        "Bring the file back from a copy, salvage what is whole into a new directory, or recover in place (pages recover).",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_TORN_TAIL, repairable,
        "The last write to a page store's log was interrupted: bytes at the end of the last file make no record, and none begins"
        " behind them. Nobody was told that it had succeeded.",
        "Whoever opens the store for writing puts it into the quarantine and cuts it.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.LOG_MISSING, damage,
        "A file of a page store's log is not there though later ones are, and no checkpoint holds what it said; or none is there,"
        " and blob files hold data.",
        "Bring the file back from a copy, salvage what the others hold into a new directory, or recover in place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_OVERLAP, damage,
        "In a page store, two pages claim the same bytes of a blob file. At most one of them can be right.",
        "The checksums tell which page is whole: salvage takes that one into a new directory, pages recover in place.",
        "pages salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.SPACE_LEAKED, repairable,
        "In a page store, a blob file reaches beyond the last page that the log knows of, as a crash leaves it between data and"
        " log. Room of pages that were deleted and not yet collected is none.",
        "pages gc cuts the file.", "pages gc",
    )  # fmt: skip
    yield FindingKind(
        Code.BACKUP_INCOMPLETE, damage,
        "In a backup vault, a part of a backup cannot be read: its pages are damaged or gone. The rest of it can be restored.",
        "backup repair takes damaged pages anew from a directory that still holds what was in them, such as another replica.",
    )  # fmt: skip

    yield FindingKind(
        Code.CLUSTER_MAPS, repairable,
        "The cluster's metadata disagrees with itself: its maps of groups, partitions and admin ports name different storage"
        " nodes, as an interrupted tool of the release leaves them, or a partition that the cluster does not have.",
        "Take the node's partitions away with cluster unassign, remove it with cluster remove-node, and add it again.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_REPLICA, repairable, "No storage node is to hold the partition: nothing can be appended to it.",
        "Give it to nodes with cluster assign or cluster auto-assign, and tell them with cluster sync.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_WITHOUT_SERVER, repairable,
        "The assignment gives the partition to no log server that lives, or to several: nobody serves it.",
        "Start a log server. Where servers run, look at their logs: the one with the smallest id writes the assignment.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_UNHEALTHY, repairable,
        "The server that has the partition has no open session: it recovers, or waits for storage nodes that are missing.",
        "Ask the server's /health whom it waits for, and bring those storage nodes back.",
    )  # fmt: skip
    yield FindingKind(
        Code.QUORUM_MISSING, repairable,
        "Fewer than a quorum of the partition's replicas are at work: nothing can be appended until more are.",
        "Bring the storage nodes back that the message names; nothing is lost while their disks are intact.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_NOT_IN_SESSION, note,
        "A replica does not take part in the partition's last session: it is down, catching up, or was added since.",
        "Wait for it to catch up. One that stays behind is not reached by the server, or out of service: see its /health.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_UNREACHABLE, repairable, "A storage node does not answer, or a log server does not reach it.",
        "Start it, or mend the network between them. A node that is gone for good is replaced by another.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_DIFFERS, repairable, "A storage node holds other partitions than the metadata gives it.",
        "cluster sync tells the node what the metadata says; look at its plan first, as taking away forgets session and marks.",
    )  # fmt: skip
    yield FindingKind(
        Code.NODE_KEY, damage, "The node at this address belongs to another cluster, or counts its partitions otherwise.",
        "Check the address. Never start a log server against it: the metadata names a wrong node, or a wrong disk is mounted.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_UNREACHABLE, repairable, "A log server stands in the metadata and does not answer at its address.",
        "If it is dead, its place goes with its session. If it runs, check --advertised-host, its port and its certificate.",
    )  # fmt: skip
    yield FindingKind(
        Code.SERVER_DIFFERS, repairable,
        "A log server serves other partitions than the assignment gives it, or the assignment was made for other servers than"
        " those that live.",
        "Just after a change this passes by itself. One that stays so does not follow the metadata: restart the server.",
    )  # fmt: skip


CATALOGUE: dict[Code, FindingKind] = {kind.code: kind for kind in _kinds()}
