"""Kinds of findings about a storage directory, and about a node or a manifest that is compared with one."""

from __future__ import annotations

from collections.abc import Iterable

from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity

RECOVER, FROM, GIVE_UP = "recover", "recover --from REPLICA", "recover --allow-data-loss"
"""The forms of recover: from the directory alone, from an intact replica, and by accepting the loss."""
FORGET = "recover --forget-losses"
"""Removes accepted losses from the ledger, so that they are not reported any more."""


def storage_kinds() -> Iterable[FindingKind]:
    """The kinds, in the order of the manual page."""
    damage, repairable, note = Severity.DAMAGE, Severity.REPAIRABLE, Severity.NOTE
    yield FindingKind(
        Code.CONTROL_FILE_MISSING, damage,
        "There are partition directories but no control file: sessions, marks and assignment are unknown.",
        "Restore the control file from a backup of this same node. Without a backup, salvage the records into a new"
        " directory.",
        "salvage --to DIR",
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_FILE_SIZE, damage,
        "The control file's length fits neither layout for the number of partitions in its header.",
        "If only the count in the header is wrong, recover restores it from the file's length; otherwise use a backup"
        " or salvage.",
        RECOVER, then=("salvage --to DIR",),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_FILE_EXTENDED, repairable,
        "Release 0.13.2 tried to open a directory of the documented layout: it extended the control file with zeros to"
        " the length of its own layout, and failed. The original content is intact and is read as before.",
        "recover cuts the zeros off. If a released node is to open the directory, then convert it to the released"
        " layout.",
        "recover",
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_STRUCT_CHECKSUM, repairable,
        "One struct of a partition's pair has a wrong checksum. The other one is valid and in force.",
        "recover rewrites the invalid struct. If the invalid struct was the newer one, the marks are those of the"
        " previous session.",
        RECOVER,
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PAIR_CHECKSUM, damage,
        "Both structs of a partition's pair are invalid: its session and marks are lost. Other partitions are not affected.",
        "recover --allow-data-loss writes an initial pair. The records stay, but a Waltz server then truncates the"
        " partition.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PAIR_TIE, damage,
        "Both structs of a partition's pair are valid, and nothing tells which one is newer. A released node refuses"
        " to start.",
        "Compare both with dump --what control; recover --allow-data-loss keeps the one with the higher marks.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.CONTROL_PARTITION_ID, damage,
        "The partition id that is stored in a partition info does not match its position in the control file. No"
        " checksum covers the id.",
        "recover writes the right id if the pair of the same partition is valid.",
        RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.JOURNAL_PENDING, note,
        "The node runs with a commit journal, or crashed with one: acknowledged records may be in the journal and not"
        " yet in their segments. With severity damage: the journal, or the file that names it, is missing or cannot be"
        " read.",
        "Start the node, with or without --journal, or run append: both first write these records back to their"
        " segments. Until then no repair is made. If the journal's device is missing, bring it back. If it is lost for"
        " good, recover --forget-journal gives up the records that were only in the journal, and recover --from"
        " restores them from a replica.",
    )  # fmt: skip
    yield FindingKind(
        Code.UNKNOWN_VERSION, damage,
        "The format version in a header is not 0, the only version that exists.",
        "If the rest of the file is valid, the version is damaged: recover restores it from the other headers.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_DIRECTORY_MISSING, damage,
        "The partition belongs to this node, according to the control file or its session and marks, but its directory"
        " does not exist.",
        "Bring the directory back, or restore its known content with recover --from REPLICA. If it was removed on"
        " purpose, unassign the partition and delete its files. If no replica has it, recover --allow-data-loss lets a"
        " running cluster start the partition anew on this node.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_NOT_ASSIGNED, note,
        "There are files of a partition that is not assigned to this node.",
        "They were kept when the partition was unassigned. Remove them by hand once they are not needed any more.",
    )  # fmt: skip
    yield FindingKind(
        Code.PARTITION_EMPTY, note,
        "The partition belongs to this node, and its directory holds no segment.",
        "This is normal for a partition that never held a record: the node creates the first segment when it opens the"
        " partition. If a session began in it, there was a segment, and this is damage. If other replicas have the"
        " partition, remove it from the running node with its files and add it again (node HOST:PORT remove-partition,"
        " add-partition): its log server copies it anew. If no replica has it, recover --allow-data-loss begins the"
        " log anew.",
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_HEADER_SHORT, damage,
        "A data file is shorter than its header.",
        "A crash during roll-over leaves such a file at the end of a partition: recover removes it, and no record is"
        " lost.",
        FROM, "the segment is the last one and holds no record", harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_KEY, damage,
        "The cluster key in a segment's header differs from the control file's.",
        "If the index entries, the request ids and all replicas agree that the records belong here, the header is"
        " damaged, and recover restores it. Otherwise the file comes from another cluster: move it away by hand. If all"
        " segments have the same other key, the control file is damaged or another node's: bring it back from a backup"
        " of this same node, or salvage the records.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_PARTITION, damage,
        "The partition in a segment's header is not that of its directory. Or it is, but the request ids of all"
        " records name another partition, and neighbouring segments, that partition's own copy or the index confirm"
        " it.",
        "As for segment-key: recover restores the header if the records prove to belong here; otherwise the file is"
        " misplaced.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_NAME, damage,
        "The first transaction id in a segment's header differs from the one in its file name.",
        "As for segment-key. If the first record shows that the header is right, the file was renamed: recover gives it its"
        " name back if that is free and the segments on both sides join it, or a replica holds its records.",
        RECOVER, then=(FROM,),
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_GAP, damage,
        "A segment begins later than the transaction that should follow the previous segment: transactions are missing.",
        "recover --from REPLICA restores them, both whole segments and ends of segments.",
        FROM,
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_OVERLAP, damage,
        "A segment begins before the end of the previous segment: the same transaction ids are in two files.",
        "A truncation whose deletions did not reach the disk leaves this. recover removes identical repeats, and"
        " records that marks, neighbours and replicas contradict. If these give no answer or disagree, compare both"
        " files with dump.",
        RECOVER, then=(FROM, GIVE_UP), again=True,
    )  # fmt: skip
    yield FindingKind(
        Code.RECORD_CHECKSUM, damage,
        "A record's stored checksum does not match its bytes, and valid records follow it.",
        "recover --from REPLICA restores exactly this record; recover --allow-data-loss splits the segment around it.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.DATA_CHECKSUM, damage,
        "A record is intact, but its data does not match the checksum that the client sent with it.",
        "The data was damaged before it was written here. Compare with another replica; recover --from REPLICA takes"
        " the replica's record.",
        FROM,
    )  # fmt: skip
    yield FindingKind(
        Code.RECORD_ORDER, damage,
        "A record with a right checksum does not have the next transaction id.",
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
        "In the last segment, above the local low-water mark, this is an interrupted write that was never"
        " acknowledged: recover cuts it. So is what stands in another segment behind the transaction in front of the next"
        " segment's first one, if that one is intact. Elsewhere acknowledged data is damaged: recover --from REPLICA.",
        FROM, "in the last segment, above the local low-water mark, or where the next segment continues the log",
        harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.ACKNOWLEDGED_MISSING, damage,
        "The partition's last transaction is below its local low-water mark: transactions that were durable are gone.",
        "Do not let this replica vote. recover --from REPLICA restores them. If no replica has them, recover"
        " --allow-data-loss lowers the mark and records the loss in the ledger of accepted losses.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.DURABLE_MISSING, damage,
        "The partition ends before transactions that were durable here. The proof is an index that extends beyond a"
        " checkpoint which was synced together with the data, or a segment that is named after a later transaction.",
        "As for acknowledged-missing. rebuild-index and append leave the proof of the loss in place.",
        FROM, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.LOSS_ACCEPTED, damage,
        "Transactions that recover --allow-data-loss gave up are still missing. They are listed in the ledger"
        " .waltzctl/accepted-losses.",
        "recover --from REPLICA restores them, and so does a running cluster that has them. If they are lost for good,"
        " recover --forget-losses ends this finding; undo reverts that, as it reverts the repair that gave them up. A"
        " gap between segments is reported (segment-gap) until its transactions are back.",
        FROM, then=(FORGET,),
    )  # fmt: skip
    yield FindingKind(
        Code.ACCEPTED_LOSSES_DAMAGED, damage,
        "The ledger of accepted losses cannot be read completely: transactions that were given up may be unlisted.",
        "The audit journal .waltzctl/journal.jsonl and the quarantine show which repairs gave up transactions. After"
        " checking them, run recover --forget-losses, which sets the ledger aside.",
        FORGET,
    )  # fmt: skip
    yield FindingKind(
        Code.STATE_FILE_DAMAGED, damage,
        "A state file in .waltzctl cannot be parsed: sessions (the highest session that was accepted) or"
        " availability.json (partitions that are switched off). Without it waltzctl's node does not open the"
        " directory, or one partition. No record is affected.",
        "Make sure that no server of an older session is running, and note which partitions were switched off. Then"
        " remove the named file, and switch these partitions off again. A released node reads neither file. A file of a"
        " later version is intact and is not removed: use the waltzctl that wrote it, or a later one.",
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_MISSING, repairable, "A segment has no index file. A released node then does not start.",
        "rebuild-index writes it from the data.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_SHORT, repairable, "An index has fewer entries than its segment has records.",
        "Usual after a crash; a node repairs it when it opens the segment. rebuild-index repairs it now.",
        "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_LONG, repairable, "An index has more entries than its segment has records.",
        "Usual after a crash. rebuild-index cuts the index.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_ENTRY, repairable, "An index entry is not the offset of its record.",
        "rebuild-index writes the index from the data.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_HEADER, repairable,
        "An index file's header is too short, or differs from the header of its data file.",
        "rebuild-index writes it from the data file.", "rebuild-index", then=(RECOVER, FROM),
    )  # fmt: skip
    yield FindingKind(
        Code.INDEX_ORPHAN, damage,
        "An index file has no data file. On a released node every later append to the partition fails.",
        "If it has no entries, a crash during roll-over left it; if other segments hold its entries, a truncation did:"
        " recover removes it. Otherwise the data file is lost: recover --from REPLICA.",
        FROM, "it has no entries, or other segments hold their transactions", harmless=RECOVER, then=(GIVE_UP,),
    )  # fmt: skip
    yield FindingKind(
        Code.RESERVED_NOT_ZERO, note, "Reserved bytes of a header are not zero; no program reads them.",
        "Harmless, but no release writes this: check the disk for bit flips.",
    )  # fmt: skip
    yield FindingKind(
        Code.UNKNOWN_FILE, note, "A file or directory that is not part of a storage directory.",
        "Look at it and move it away; no program reads it.",
    )  # fmt: skip
    yield FindingKind(
        Code.SPECIAL_FILE, damage,
        "A control, data or index file name belongs to a FIFO, socket, device, directory or broken link,"
        " or to an entry that the disk or file server does not let be examined.",
        "No command opens, replaces or removes it. Find out what created it and move it away by hand, or mend the disk"
        " or file server; then verify again.",
        when_harmless="it has the name of an index, which rebuild-index then writes from the data",
    )  # fmt: skip
    yield FindingKind(
        Code.SEGMENT_STRAY, damage,
        "A data file has a name that is not a segment's. A released node opens every file that ends in .seg, and does"
        " not start if it cannot. Programs that expect regular segment names do not see its records.",
        "If header, records and neighbouring segments prove that the file belongs to the partition, and the right name"
        " is free, recover renames it. Otherwise look at it with dump and move it away by hand.",
        "recover", "all its records are also in files with the right names",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_REFUSES, damage,
        "Reported by verify --for released: release 0.13.2 does not start on this directory. One such place keeps the"
        " whole node down.",
        "The finding names the place and, if there is one, the command that repairs it without loss. Do not try a"
        " start: it changes files.",
        when_harmless="a command repairs it without loss",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_LOSES, damage,
        "Reported by verify --for released: release 0.13.2 drops data silently when it starts. It cuts a segment at"
        " the first invalid record, whatever follows, and overwrites a short or missing control file.",
        "Repair what the other findings name before a released node opens the directory.",
    )  # fmt: skip
    yield FindingKind(
        Code.RELEASED_BLOCKS, repairable,
        "Reported by verify --for released: release 0.13.2 starts, but every append fails once a new segment would get"
        " the name of an index that has no data file.",
        "recover removes such an index if it proves no loss.",
    )  # fmt: skip
    yield FindingKind(
        Code.READ_ERROR, damage, "The operating system could not read a part of a file.",
        "Copy the readable parts with a tool that tolerates errors, then work on the copy.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPAIR_INTERRUPTED, repairable, "A repair was interrupted. Everything that it replaced is kept.",
        "undo reverts it; the next command that writes does so as well.", "undo",
    )  # fmt: skip
    yield FindingKind(
        Code.TEMPORARY_FILE, note,
        "A process ended while it was building this file; the file holds no acknowledged data.",
        "The next command that writes the same target file removes it.",
    )  # fmt: skip
    yield FindingKind(
        Code.SEEN_FROM_OUTSIDE, note,
        "The storage was read through a node's port, which does not show files, headers, indexes, record checksums or"
        " the marks in the control file.",
        "For the rest, verify the directory on the node's own machine; the node can keep running.",
    )  # fmt: skip
    yield FindingKind(
        Code.REPLICA_DIFFERS, damage, "Two replicas hold different records under the same transaction id.",
        "Only one of the two can be right. Compare both with dump before you copy from either replica.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_DIFFERS, damage, "A file differs from its size or hash in the manifest.",
        "Copy the file again from the directory that the manifest describes. If a repair changed it on purpose, make a"
        " new manifest.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_MISSING_FILE, damage, "The manifest names a file that does not exist here.",
        "Copy it again from the directory that the manifest describes.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_EXTRA_FILE, damage,
        "A file exists that the manifest does not name, and later appends do not explain it.",
        "Find out where it comes from; move it away if it does not belong here.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_SIGNATURE, damage,
        "The manifest is damaged, not signed, or signed with another key than the given one: it proves nothing.",
        "Get the manifest from where it was made, and the public key from its owner. With severity note: the manifest"
        " is signed and no key was given; pass it with --manifest-key.",
    )  # fmt: skip
    yield FindingKind(
        Code.MANIFEST_GROWN, note,
        "Records were appended after the manifest was made. All that the directory held then is unchanged, byte for"
        " byte.",
        "The manifest does not cover what was appended later; make a new one to cover it.",
    )  # fmt: skip
