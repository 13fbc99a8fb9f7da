"""A sixth sample of slips, one in each of 44 files, 35 of which no slip had touched before.

They were made from the code alone, and all were written down before the first was tried.
"""

from __future__ import annotations

from tests.mutation.trial import Slip

SIXTH: tuple[Slip, ...] = (
    Slip(
        "engine/storage/wire_records.py",
        "r.data, r.data_checksum) for r in records)",
        "r.data, r.record_checksum) for r in records)",
        (),
        "records that are sent one by one come with a checksum that is not their data's, and every client refuses them",
    ),
    Slip(
        "engine/storage/directory.py",
        "if info.stored_partition != number or (unknown and not delete_files and self.layout.has_flags):",
        "if unknown and not delete_files and self.layout.has_flags:",
        (),
        "a partition whose info stands in another one's place is taken away, and the marks that go may be the other one's",
    ),
    Slip(
        "engine/storage/segment_reader.py",
        "if offsets[0] < run.start or offsets[-1] > run.end or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        "if offsets[0] < run.start or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        (),
        "an entry that leads behind the records that are believed is followed, and what stands there is served",
    ),
    Slip(
        "engine/storage/belonging.py",
        "return found is not None and found.record == record.record",
        "return found is not None",
        (),
        "a partition whose client writes another number into its request ids is called another one's, and quarantined",
    ),
    Slip(
        "engine/durable/execution.py",
        "            disk.sync_directory(entry.path)  # the kept name first: the file is never without a durable name\n",
        "",
        (),
        "a power loss within a repair takes a file that is nowhere else by then",
    ),
    Slip(
        "engine/durable/disk.py",
        """            yield file
            file.sync()
        rename(beside, path)
""",
        """            yield file
        rename(beside, path)
""",
        (),
        "a power loss behind a write of a whole file leaves its name with nothing in it",
    ),
    Slip(
        "engine/inspect/digests.py",
        "self._add(buffer[self._done - offset : count])",
        "self._add(buffer[self._done - offset :])",
        (),
        "a file that became shorter while it was read has a digest, of bytes that it never held",
    ),
    Slip(
        "engine/inspect/directory_manifest.py",
        "    if (key, partitions) != (str(header.cluster_key), header.num_partitions):",
        "    if key != str(header.cluster_key) and partitions != header.num_partitions:",
        (),
        "a manifest that names another cluster than its control header is believed",
    ),
    Slip(
        "engine/inspect/dump_index.py",
        "index.begins + index.count() if last is None else min(last + 1,",
        "index.begins + index.count() if last is None else min(last,",
        (),
        "a wrong entry of the last transaction that was asked for is not shown",
    ),
    Slip(
        "engine/inspect/dump_records.py",
        "rows = rows[: max(0, last + 1 - begins - rows.start)]",
        "rows = rows[: max(0, last + 1 - begins)]",
        (),
        "a dump of a range goes on behind its end, and whoever joins two of them has records twice",
    ),
    Slip(
        "engine/inspect/partition_runs.py",
        "behind.first <= first and leads",
        "behind.first <= first + 1 and leads",
        (),
        "the last record of a segment is left out, without a word, when a read begins with it",
    ),
    Slip(
        "engine/inspect/unread_losses.py",
        "given_up = [(loss.first, loss.last + 1) for loss in run.context.accepted]",
        "given_up = [(loss.first, loss.last) for loss in run.context.accepted]",
        (),
        "an accepted loss of a single transaction is told by no reader",
    ),
    Slip(
        "engine/inspect/status.py",
        "last=max((report.last_id for report in held if report.last_id is not None), default=None),",
        "last=held[-1].last_id if held else None,",
        (),
        "where a segment goes on behind the next one's end, the status says that there are fewer transactions than there are",
    ),
    Slip(
        "engine/log/parts.py",
        "if found is not None and found.offset > bounds[-1].offset and found.transaction_id",
        "if found is not None and found.transaction_id",
        (),
        "an index that leads back to a copy of a record makes parts that overlap, and records are read twice",
    ),
    Slip(
        "engine/repair/arguments.py",
        "or type(one.value) is not kind:",
        "or not isinstance(one.value, kind):",
        (),
        "a plan file that says true for a mark sets it to 1",
    ),
    Slip(
        "engine/repair/embedded.py",
        "loss.stop - loss.first < 1:",
        "loss.stop - loss.first < 2:",
        (),
        "what a client stored inside a single damaged record is taken for the record behind it",
    ),
    Slip(
        "engine/repair/planners.py",
        '    if steps != PLAN.keys(repair.plan)["steps"]:',
        '    if len(steps) != len(PLAN.keys(repair.plan)["steps"]):',
        (),
        "a plan in which somebody changed a step is carried out, but not as it reads",
    ),
    Slip(
        "engine/repair/recover.py",
        "accepted=of_partition(ledger.losses, number),",
        "accepted=ledger.losses,",
        (),
        "a loss that was accepted in one partition excuses the same ids in every other",
    ),
    Slip(
        "engine/repair/replica_proofs.py",
        "            record is not None and one.record(self.context.partition, loss.stop) == record for one in self.replicas",
        "            one.record(self.context.partition, loss.stop) == record for one in self.replicas",
        (),
        "where neither has an intact record, the replica counts as one that has the same, and wrong ids are taken for right",
    ),
    Slip(
        "engine/repair/survey_settlement.py",
        "            if isinstance(proven, Proven) and len(proven) == whole.length:",
        "            if isinstance(proven, Proven):",
        (),
        "intact records are replaced by a replica's that take another number of bytes, so that they cannot be what stood there",
    ),
    Slip(
        "engine/repair/survey.py",
        "    return touches and not before.record_ok and not before.unread",
        "    return touches and not before.unread",
        (),
        "an intact record whose data was sent wrong goes with the damaged one behind it",
    ),
    Slip(
        "engine/repair/salvage.py",
        "told = max((one.control.header.num_partitions for one in controls.found), default=0)",
        "told = min((one.control.header.num_partitions for one in controls.found), default=0)",
        (),
        "of two control files that were found the smaller one tells how many partitions the cluster has",
    ),
    Slip(
        "engine/repair/salvage_output.py",
        "    disk.sync_directory(to.parent)\n    return written",
        "    return written",
        (),
        "a power loss behind a salvage that was reported as done leaves no directory under its name",
    ),
    Slip(
        "engine/repair/recover_strays.py",
        "    if behind is not None and behind.first != found.next_id:",
        "    if behind is not None and behind.first < found.next_id:",
        (),
        "a stray that leaves a gap in front of the next segment is given a name, and the gap is an acknowledged loss",
    ),
    Slip(
        "engine/compare/ranges.py",
        "segments[max(0, first - 1) : last + 1]",
        "segments[max(0, first - 1) : last]",
        (),
        "what a replica lacks between a range's last segment and the next one is no damage, and it votes as one that has less",
    ),
    Slip(
        "engine/scan/carve.py",
        "min(len(batch), max_id + 1 - int(batch.transaction_id[0]))",
        "min(len(batch), max_id - int(batch.transaction_id[0]))",
        (),
        "the record with the highest id that is looked for is not found",
    ),
    Slip(
        "engine/scan/index_mask.py",
        "inside[phase + first * ENTRY_SIZE : phase + (last + 1) * ENTRY_SIZE] = True",
        "inside[phase + first * ENTRY_SIZE : phase + (last + 2) * ENTRY_SIZE] = True",
        (),
        "a record right behind a piece of an index is not found",
    ),
    Slip(
        "engine/scan/code_cache.py",
        "not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)",
        "not status.st_mode & stat.S_IWOTH",
        (),
        "code that anybody of the group could have put there judges the records",
    ),
    Slip(
        "engine/scan/wire_loops.py",
        """        if data_sum != unsigned_at(memory, position + HEAD):
            status = BAD_DATA
            break
        if brief:
""",
        """        if brief:
""",
        (),
        "a record whose data is not what its client sent is served with a checksum that agrees",
    ),
    Slip(
        "engine/node/answers.py",
        '    (FRAME_HEADER.size + PREFIX.offset_of("session_id"), _SESSION),\n',
        "",
        (),
        "failures of requests of several sessions all name the first one's, and the others wait for an answer",
    ),
    Slip(
        "engine/node/partition_outage.py",
        "outage.returns is Return.SPACE and time.monotonic() - self._out_since >= age:",
        "outage.returns is Return.SPACE:",
        (),
        "a look at the disk that began before it was full puts the partition back into sessions",
    ),
    Slip(
        "engine/node/readings.py",
        "local_low_water_mark=current.local_low_water_mark,",
        "local_low_water_mark=current.low_water_mark,",
        (),
        "whoever watches a node believes that more, or less, is durable there than is",
    ),
    Slip(
        "engine/node/node.py",
        "                expected_partitions=partitions,\n",
        "",
        (),
        "a directory with another number of partitions than the cluster's is served",
    ),
    Slip(
        "engine/spark/directory_views.py",
        "known = (*one.around.findings, *storage_findings(one.scope, one.around, limits))",
        "known = tuple(storage_findings(one.scope, one.around, limits))",
        (),
        "damage of the control file is in no row of the findings",
    ),
    Slip(
        "engine/spark/finding_tasks.py",
        "held_ids([*self._before(lost, limits), *reports])",
        "held_ids([*self._before(listed, limits), *reports])",
        (),
        "transactions that were given up and came back count as lost where a partition is read by several tasks",
    ),
    Slip(
        "engine/spark/stream_losses.py",
        "if self.mark is None or self.mark < stop - 1:",
        "if self.mark is None or self.mark < stop:",
        (),
        "the loss of acknowledged transactions up to the mark is told as one of records that nobody acknowledged",
    ),
    Slip(
        "engine/spark/read_options.py",
        "    refuse_unknown(options, KNOWN)\n    view,",
        "    view,",
        (),
        "a misspelt option, one that should fail a query on loss for instance, is ignored",
    ),
    Slip(
        "engine/spark/record_arrays.py",
        "    if data_ok.all():",
        "    if data_ok[0]:",
        (),
        "a record whose data is not what was sent has no finding, unless it is the first of its batch",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "elif one.marked and _held(one) >= _held_at_least(state):",
        "elif one.marked:",
        (),
        "a session opens on a replica that has not copied yet, and its quorum is none",
    ),
    Slip(
        "engine/quorum/vote.py",
        "if count + (damaged if len(candidates) == 1 else 0) >= self.quorum:",
        "if count + damaged >= self.quorum:",
        (),
        "of two versions of a transaction the first is kept for certain, and the other one, which may be right, is cut",
    ),
    Slip(
        "formats/lock_id.py",
        "(units[at] << 8 | units[at + 1])",
        "units[at + 1]",
        (),
        "a lock whose name is not in Latin letters has another id than a Java client's, and the two write over one another",
    ),
    Slip(
        "formats/request_id.py",
        "high = ((self.client & 0xFFFFFFFF) << 32) | (self.generation & 0xFFFFFFFF)",
        "high = ((self.client & 0xFFFFFFFF) << 32) | self.generation",
        (),
        "a request id with a negative generation names another client",
    ),
    Slip(
        "formats/java_text.py",
        "    if len(encoded) > MAX_UTF:",
        "    if len(text) > MAX_UTF:",
        (),
        "a long text of other than Latin letters gets a length that is not its own, and the rest of the message is misread",
    ),
    Slip(
        "formats/wire/codec.py",
        "            if position != len(view):\n",
        "            if position > len(view):\n",
        (),
        "a message with bytes left over, of another version or cut out of another, is taken for what it begins like",
    ),
)
