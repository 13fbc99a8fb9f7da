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
        " session began in it, there was a segment: that is damage. Where other replicas have it, take it away from the running"
        " node with its files and give it back (node HOST:PORT remove-partition, add-partition): its log server copies it anew."
        " Where none has it, recover --allow-data-loss begins the log anew.",
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
        "recover --from REPLICA restores them, whole segments as well as ends of segments.",
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
        " --forget-losses ends the reminder; undo takes that back, like the repair that gave them up. A hole between segments"
        " stays named (segment-gap) until its transactions are here.",
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
        Code.STATE_FILE_DAMAGED, damage,
        "A file in .waltzctl without which our node does not open the directory, or one partition, cannot be understood: sessions"
        " (which sessions were let in) or availability.json (which partitions are switched off). No record is affected.",
        "Make sure that no server of an older session is running, and note which partitions were switched off; then remove the"
        " named file, and switch these off again. A released node reads neither.",
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
