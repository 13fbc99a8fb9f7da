"""Slips in the page store: torn or damaged, which room is whose, what a snapshot sees, what is durable before what."""

from __future__ import annotations

from tests.mutation.trial import Slip

_BLOCKS = "formats/pages/blocks.py"
_SPACE = "engine/pages/space_map.py"
_STATS = "engine/pages/blob_stats.py"
_BLOBS = "engine/pages/blob_store.py"
_READER = "engine/pages/wal_reader.py"
_WAL = "engine/pages/wal_store.py"
_DIRECTORY = "engine/pages/page_directory.py"
_JUDGEMENT = "engine/pages/judgement.py"
_STORAGE = "engine/pages/page_storage.py"
_GC = "engine/pages/page_gc.py"
_RECLAMATION = "engine/pages/reclamation.py"
_SALVAGE = "engine/pages/page_salvage.py"
_RECOVERY = "engine/pages/page_recovery.py"
_OF_BLOCKS = ("tests/formats/pages/test_blocks.py",)
_OF_SPACE = ("tests/pages/test_space_map.py",)
_OF_WAL = ("tests/pages/test_wal.py",)
_OF_VERSIONS = ("tests/pages/test_page_directory.py",)
_OF_GC = ("tests/pages/test_page_gc.py",)
_WHOLE = ("tests/pages/test_page_storage.py",)
_CRASHES = ("tests/crash/test_pages.py",)
_CACHE = "engine/pages/page_cache.py"
_OF_CACHE = ("tests/pages/test_page_cache.py",)
_OF_SUPERSEDED = ("tests/pages/test_superseded.py",)
_TOGETHER = ("tests/pages/test_flushed_with_record.py",)
_OF_RECOVERY = ("tests/pages/test_page_recovery.py",)

PAGES: tuple[Slip, ...] = (
    Slip(
        _BLOCKS,
        "            begun += 1\n",
        "",
        _OF_BLOCKS,
        "damage in the middle of a log is cut as a torn tail, with all that was written later",
    ),
    Slip(
        _BLOCKS,
        "if kind == FragmentType.ZERO or crc32c(data[offset + COVERED_FROM : start + length]) != checksum:",
        "if kind == FragmentType.ZERO or crc32c(data[offset + COVERED_FROM + 2 : start + length]) != checksum:",
        _OF_BLOCKS,
        "a length is not covered, so that a wrong one leads past records that are whole",
    ),
    Slip(
        _BLOCKS,
        "        if isinstance(one, LogFault):\n            drop_open()\n",
        "        if isinstance(one, LogFault):\n",
        _OF_BLOCKS,
        "the halves of two records are joined over what is damaged between them",
    ),
    Slip(
        _BLOCKS,
        "    if not plain and _HEADER.unpack_from(data, offset)[3] != log_number:\n        return FaultKind.OTHER_LOG\n",
        "",
        _OF_BLOCKS,
        "what another log left in the file is replayed",
    ),
    Slip(
        _SPACE,
        "        if place < len(self._starts) and self._starts[place] < end:\n            return False\n",
        "        if place < len(self._starts) and offset < self._starts[place] < end:\n            return False\n",
        _OF_SPACE,
        "room that is free already is given back, and two pages get it",
    ),
    Slip(
        _SPACE,
        "        if offset + size > end:\n            return False\n        self._remove(start)\n",
        "        self._remove(start)\n",
        _OF_SPACE,
        "a page may lie over another one",
    ),
    Slip(
        _STATS,
        "if not stat.read_only and stat.space.largest_free >= size:",
        "if stat.space.largest_free >= size:",
        _OF_SPACE,
        "pages are written into a file that is being emptied",
    ),
    Slip(
        _BLOBS,
        "            for span in taken:\n                self.stats.give_back(span)\n            raise\n",
        "            raise\n",
        ("tests/pages/test_blob_store.py",),
        "each write onto a full disk takes room for ever",
    ),
    Slip(
        _BLOBS,
        "            if flush:\n",
        "            if flush and False:\n",
        _CRASHES,
        "a page is in the log and not on the disk",
    ),
    Slip(
        _BLOBS,
        "            disk.sync_directory(self.directory)\n",
        "            pass\n",
        _CRASHES,
        "a power loss takes a blob file with pages that were promised",
    ),
    Slip(
        _READER,
        "        if last is None or not last.faults or not all(fault.torn for fault in last.faults):",
        "        if last is None or not last.faults or not any(fault.torn for fault in last.faults):",
        ("tests/pages/test_inspection.py", *_OF_WAL),
        "a log with damage and a torn tail is opened, and cut at the damage",
    ),
    Slip(
        _READER,
        "            if not file.closed and file is not last and not file.faults:",
        "            if not file.closed and file is not last and file.faults:",
        _OF_WAL,
        "a log or checkpoint that was cut short is believed",
    ),
    Slip(
        _READER,
        "    expected = previous.name.number + 1 if previous is not None else 1",
        "    expected = previous.name.number + 1 if previous is not None else file.name.number",
        _OF_WAL,
        "a lost checkpoint is not missed",
    ),
    Slip(
        _WAL,
        "                file.sync()  # whoever wrote it may have died before this, and what closes it must not"
        " stand alone\n",
        "",
        _CRASHES,
        "what one process wrote and died over is shown by the next one, and a power loss takes it",
    ),
    Slip(
        _WAL,
        '        self._write(b"")\n        self._failed = True\n',
        "        self._failed = True\n",
        _OF_WAL,
        "a log does not say where it ends",
    ),
    Slip(
        _WAL,
        "        self._failed = True\n        self._file.write_at(self._position, data)\n",
        "        self._file.write_at(self._position, data)\n",
        _OF_WAL,
        "records are written behind a half one",
    ),
    Slip(
        _DIRECTORY,
        "        while row != NONE and sequences[row] > sequence:",
        "        while row != NONE and sequences[row] >= sequence:",
        _OF_VERSIONS,
        "a snapshot sees one batch less than there was",
    ),
    Slip(
        _DIRECTORY,
        "        self.rows.references[target] += 1  # before the chain of the page lets go of what it had\n",
        "",
        _OF_VERSIONS,
        "what a reference leads to is freed with its page",
    ),
    Slip(
        _DIRECTORY,
        "            if sequence is not None and rows.sequence[row] <= sequence:\n                kept.append(row)\n",
        "            if sequence is not None and rows.sequence[row] < sequence:\n                kept.append(row)\n",
        _OF_VERSIONS,
        "a snapshot loses a version",
    ),
    Slip(
        "engine/pages/checkpoint.py",
        "[Edit(EditType.VAR_HIGHEST, PageId(*one), now) for one in directory.highest_ids.items()]",
        "[Edit(EditType.VAR_HIGHEST, PageId(one[0], 0), now) for one in directory.highest_ids.items()]",
        _OF_VERSIONS,
        "the id of a page that is gone is given away again",
    ),
    Slip(
        _JUDGEMENT,
        "        if (count := self._references(page)) > 0:",
        "        if (count := self._references(page)) > 1:",
        _OF_VERSIONS,
        "a page that another one refers to is written anew",
    ),
    Slip(
        _STORAGE,
        "        if self._failure is None:\n            self.blobs.give_back(spans)\n",
        "        self.blobs.give_back(spans)\n",
        _WHOLE + _OF_WAL,
        "after a failed flush the room of a page is given away that the log may have",
    ),
    Slip(
        _STORAGE,
        "        except WaltzError:\n            self.give_back(spans)\n            raise\n",
        "        except WaltzError:\n            raise\n",
        _OF_WAL,
        "refused batches take room for ever",
    ),
    Slip(
        _STORAGE,
        "                if len(data) != size or crc32c(data) != one.checksum:",
        "                if len(data) != size:",
        _WHOLE,
        "damaged pages are served",
    ),
    Slip(
        _STORAGE,
        "            for ticket in group:\n                ticket.error = ticket.error or told\n",
        "",
        _WHOLE,
        "writers whose batch is not in the log are told that it is",
    ),
    Slip(
        _GC,
        "                if span.size and store.directory.at(one.row) == (one.page, one.version, one.entry)",
        "                if span.size",
        _OF_GC,
        "a page that was written or deleted while its old version moved becomes the old one",
    ),
    Slip(
        _GC,
        "        if len(record) >= _EDITS_OF_A_RECORD and edit.type is not EditType.VAR_REF:",
        "        if len(record) >= _EDITS_OF_A_RECORD:",
        _OF_GC,
        "where a checkpoint is damaged, a reference leads to an older version",
    ),
    Slip(
        "engine/pages/page_index.py",
        "if np.any((ids[there] == ids[rows]) & (namespaces[there] == namespaces[rows])):",
        "if np.any((ids[there] == rows) & (namespaces[there] == namespaces[rows])):",
        ("tests/pages/test_restore.py",),
        "a page that stands twice in a checkpoint is two pages",
    ),
    Slip(
        "engine/pages/log_replay.py",
        "(files[1:] == files[:-1]) & (offsets[1:] < (offsets + sizes)[:-1])",
        "(files[1:] == files[:-1]) & (offsets[1:] < offsets[:-1])",
        _WHOLE,
        "two pages that claim the same bytes are opened",
    ),
    Slip(
        _RECLAMATION,
        "            while self._retired and self._retired[0][0] < oldest:",
        "            while self._retired and self._retired[0][0] <= oldest:",
        _OF_GC,
        "room is given away while somebody reads there",
    ),
    Slip(
        _SALVAGE,
        "            if not is_whole(one.entry, data):",
        "            if len(data) != one.entry.size:",
        ("tests/pages/test_inspection.py",),
        "damaged pages are salvaged as if they were whole",
    ),
    Slip(
        _RECOVERY,
        "            edits.append(Remove(file.path))\n",
        "",
        _OF_RECOVERY,
        "the logs that a recovery replaces are kept nowhere, and the next who opens the store removes them",
    ),
    Slip(
        _RECOVERY,
        "    number = contents.highest_number\n",
        "    number = contents.highest_number + 1\n",
        _OF_RECOVERY,
        "nobody sees that a store was opened since, and undo brings pages back over which others lie",
    ),
    Slip(
        _RECOVERY,
        "name is not None and name.number > highest]",
        "name is not None and name.number > highest + 1]",
        _OF_RECOVERY,
        "undo brings pages back over which others were written since",
    ),
    Slip(
        _RECOVERY,
        "                if now.hash != plan.hash:",
        "                if now.mode != plan.mode:",
        _OF_RECOVERY,
        "more is given up than somebody agreed to",
    ),
    Slip(
        _RECOVERY,
        "        whole = [one for one in group if is_whole(one[1], read_page(path, one[1]))]",
        "        whole = group",
        _OF_RECOVERY,
        "the page goes that is there, and the one stays whose room it has",
    ),
    Slip(
        _RECOVERY,
        "        if not going:\n",
        "        if not going or one.type is EditType.VAR_REF:\n",
        _OF_RECOVERY,
        "a reference leads to another version than ever",
    ),
    Slip(
        _RECOVERY,
        "            edits.append(PageEdit(EditType.VAR_DELETE, page, now))\n",
        "            pass\n",
        _OF_RECOVERY,
        "a page that is given up is what it was long ago",
    ),
    Slip(
        _RECOVERY,
        "    named = {*(PageId(*one) for one in everything.highest_ids.items()), *(one.page for one in left_out)}",
        "    named = {PageId(*one) for one in everything.highest_ids.items()}",
        _OF_RECOVERY,
        "an id that somebody was given is given away again",
    ),
    Slip(
        "engine/pages/log_replay.py",
        "            if mode is RecoveryMode.POINT_IN_TIME:\n                break\n",
        "            continue\n",
        _OF_RECOVERY,
        "a store as it was at one moment never was like that",
    ),
    Slip(
        "engine/pages/inspection.py",
        "        findings = [*interruptions(path, STORE), *findings]",
        "        findings = [*findings]",
        ("tests/cli/test_pages.py",),
        "a store is clean for verify that is damaged again once it is opened",
    ),
    Slip(
        "engine/durable/undoable.py",
        "                later.number > entry.number\n                and later.state",
        "                later.number < entry.number\n                and later.state",
        _OF_RECOVERY,
        "who wants to undo is not told which repair comes first",
    ),
    Slip(
        _READER,
        "lost=not files and _blobs_hold_data(store / BLOB_DIRECTORY)",
        "lost=False",
        _OF_RECOVERY,
        "where the log is gone all pages are collected as room that nobody uses",
    ),
    Slip(
        _READER,
        "        if self.closed or not self.records or",
        "        if not self.records or",
        _TOGETHER,
        "a page of a store that was closed, damaged long after, is taken back as if nobody had been promised it",
    ),
    Slip(
        _READER,
        "any(fault.offset >= self.end for fault in self.faults)",
        "any(fault.offset > self.end for fault in self.faults)",
        _TOGETHER,
        "a write that was promised is taken back, as the next one was interrupted and a page of it is damaged",
    ),
    Slip(
        _READER,
        "any(fault.offset >= self.end for fault in self.faults)",
        "self.faults",
        _TOGETHER,
        "where the log is damaged as well, a page shows bytes that were never written",
    ),
    Slip(
        _READER,
        "        if again.size != file.size:\n",
        "        if again.size < file.size:\n",
        _TOGETHER,
        "whoever looks at a store that is written to misses what was promised",
    ),
    Slip(
        "formats/pages/write_batch.py",
        "edit.entry.size and edit.flags & flag]",
        "edit.entry.size]",
        _TOGETHER,
        "damage to data that was durable before its record costs the record, too",
    ),
    Slip(
        _STORAGE,
        "sum(map(len, data)) <= self.options.flushed_with_record",
        "sum(map(len, data)) < self.options.flushed_with_record",
        _TOGETHER,
        "a write of just the size that is told has two flushes",
    ),
    Slip(
        _STORAGE,
        "            blobs.confirm([_span_of(entry) for entry in contents.unconfirmed_pages])\n",
        "",
        _TOGETHER,
        "what one process wrote and died over is built upon by the next one, and a power loss takes it",
    ),
    Slip(
        _BLOBS,
        "                file.write_at(span.offset, file.read_at(span.offset, span.size))",
        "                file.read_at(span.offset, span.size)",
        _TOGETHER,
        "after a failed flush the next one succeeds, and the data is on no disk",
    ),
    Slip(
        _WAL,
        "self._flusher.flush([*with_files, self._file])",
        "self._flusher.flush([self._file, self._file])",
        _CRASHES,
        "a page is in the log and not on the disk",
    ),
    Slip(
        _STORAGE,
        "return whole if type(whole) is bytes and len(whole) == len(view) else bytes(view)",
        "return whole if type(whole) is bytes else bytes(view)",
        _OF_CACHE,
        "a page that was written as a part of a buffer shows all of the buffer",
    ),
    Slip(
        _STORAGE,
        "return whole if type(whole) is bytes and len(whole) == len(view) else bytes(view)",
        "return whole if len(whole) == len(view) else bytes(view)",
        _OF_CACHE,
        "a page changes with the buffer that it was written from",
    ),
    Slip(
        _CACHE,
        "            while self.size + size > self._limit:",
        "            while self.size > self._limit:",
        _OF_CACHE,
        "pages in memory take more than they may",
    ),
    Slip(
        _CACHE,
        "        if place < len(self._keys):\n            self._keys[place] = last\n",
        "        if place < len(self._keys) - 1:\n            self._keys[place] = last\n",
        _OF_CACHE,
        "a page that went is to go once more, and whoever writes ends with an internal error",
    ),
    Slip(
        _CACHE,
        "            kept.asked_for = False\n",
        "            break\n",
        _OF_CACHE,
        "what is read again and again goes like everything else",
    ),
    Slip(
        "engine/pages/page_data.py",
        "return len(data) == entry.size and crc32c(data) == entry.checksum",
        "return len(data) == entry.size",
        _WHOLE,
        "damaged pages are served as if they were whole",
    ),
    Slip(
        _RECLAMATION,
        "        while self._size > self._limit:",
        "        while self._size >= self._limit:",
        _OF_SUPERSEDED,
        "less is kept than is said",
    ),
    Slip(
        _STORAGE,
        "        if not self._snapshots.held:\n",
        "        if True:\n",
        _OF_SUPERSEDED,
        "a snapshot loses what it sees",
    ),
    Slip(
        _STORAGE,
        "                self.reclamation.supersede(self.directory.take_freed(), named=self.wal.unconfirmed)",
        "                self.blobs.give_back(self.directory.take_freed())",
        _OF_SUPERSEDED,
        "a page is written over while somebody reads it",
    ),
    Slip(
        _GC,
        "    store.reclamation.retire()",
        "    pass",
        _OF_SUPERSEDED,
        "collection leaves room that nobody uses",
    ),
    Slip(
        _RECLAMATION,
        "            if named:\n                self._named += spans\n            else:\n                self._keep(spans)\n",
        "            self._keep(spans)\n",
        _OF_SUPERSEDED,
        "a record that was promised is taken back, as what it named besides was written over",
    ),
    Slip(
        _GC,
        "        store.confirm()\n",
        "",
        _OF_SUPERSEDED,
        "a round leaves room that nobody uses",
    ),
    Slip(
        _GC,
        "named=store.wal.unconfirmed)",
        "named=False)",
        _OF_SUPERSEDED,
        "a round gives room away that the last record needs",
    ),
    Slip(
        _STORAGE,
        "            if not self.wal.unconfirmed:\n",
        "            if False:\n",
        _OF_SUPERSEDED,
        "every round of collection writes to the log",
    ),
    Slip(
        _STORAGE,
        "                self.reclamation.confirm()  # the log was closed behind it\n",
        "                pass\n",
        _OF_SUPERSEDED,
        "a round leaves room that nobody uses until somebody writes",
    ),
)
