"""A sixth sample of slips, one in each of 43 files, 34 of which no slip had touched before; six were not noticed (14 %).

They were made from the code alone, and all were written down before the first was tried.  A 44th changed nothing that can happen.
"""

from __future__ import annotations

from tests.mutation.trial import Slip

SIXTH: tuple[Slip, ...] = (
    Slip(
        "engine/storage/wire_records.py",
        "r.data, r.data_checksum) for r in records)",
        "r.data, r.record_checksum) for r in records)",
        ("tests/storage/test_read_wire.py::test_a_wrong_index_costs_time_and_no_record",),
        "records that are sent one by one come with a checksum that is not their data's, and every client refuses them",
    ),
    Slip(
        "engine/storage/directory.py",
        "if info.stored_partition != number or (unknown and not delete_files and self.layout.has_flags):",
        "if unknown and not delete_files and self.layout.has_flags:",
        (
            "tests/storage/test_opening_and_rolling.py::test_a_partition_whose_place_names_another_one_is_neither_taken_away_nor_switched",
        ),
        "a partition whose info stands in another one's place is taken away, and the marks that go may be the other one's",
    ),
    Slip(
        "engine/storage/segment_reader.py",
        "if offsets[0] < run.start or offsets[-1] > run.end or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        "if offsets[0] < run.start or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        ("tests/storage/test_segment_reader.py",),
        "an entry that leads behind the records that are believed is followed, and what stands there is served",
    ),
    Slip(
        "engine/storage/belonging.py",
        "return found is not None and found.record == record.record",
        "return found is not None",
        ("tests/storage/test_belonging.py::test_another_record_of_its_id_in_the_other_directory_is_none",),
        "a partition whose client writes another number into its request ids is called another one's, and quarantined",
    ),
    Slip(
        "engine/durable/execution.py",
        "            disk.sync_directory(entry.path)  # the kept name first: the file is never without a durable name\n",
        "",
        ("tests/durable/test_edits.py::test_what_is_kept_and_built",),
        "a power loss within a repair takes a file that is nowhere else by then",
    ),
    Slip(
        "engine/durable/disk.py",
        """                yield file
                file.sync()
                file.close()
""",
        """                yield file
                file.close()
""",
        ("tests/durable/test_entries.py::test_an_entry_from_its_first_file_to_its_last",),
        "a power loss behind a write of a whole file leaves its name with nothing in it",
    ),
    Slip(
        "engine/inspect/digests.py",
        "self._add(buffer[self._done - offset : count])",
        "self._add(buffer[self._done - offset :])",
        ("tests/inspect/test_one_step.py::test_a_digest_is_of_so_many_bytes_however_they_are_read",),
        "a file that became shorter while it was read has a digest, of bytes that it never held",
    ),
    Slip(
        "engine/inspect/directory_manifest.py",
        "    if (key, partitions) != (str(header.cluster_key), header.num_partitions):",
        "    if key != str(header.cluster_key) and partitions != header.num_partitions:",
        ("tests/inspect/test_last_steps.py::test_what_a_manifest_may_hold",),
        "a manifest that names another cluster than its control header is believed",
    ),
    Slip(
        "engine/inspect/dump_index.py",
        "index.begins + index.count() if last is None else min(last + 1,",
        "index.begins + index.count() if last is None else min(last,",
        ("tests/inspect/test_edges.py::test_entries_of_ids_come_in_pieces",),
        "a wrong entry of the last transaction that was asked for is not shown",
    ),
    Slip(
        "engine/inspect/dump_records.py",
        "rows = rows[: max(0, last + 1 - begins - rows.start)]",
        "rows = rows[: max(0, last + 1 - begins)]",
        ("tests/inspect/test_whole_answers.py::test_damage_says_this_from_every_side",),
        "a dump of a range goes on behind its end, and whoever joins two of them has records twice",
    ),
    Slip(
        "engine/inspect/segment_order.py",
        "behind.first <= first and leads",
        "behind.first <= first + 1 and leads",
        ("tests/inspect/test_last_steps.py::test_segments_whose_names_bound_them_are_not_opened",),
        "the last record of a segment is left out, without a word, when a read begins with it",
    ),
    Slip(
        "engine/inspect/unread_losses.py",
        "given_up = [(loss.first, loss.last + 1) for loss in run.context.accepted]",
        "given_up = [(loss.first, loss.last) for loss in run.context.accepted]",
        ("tests/inspect/test_last_steps.py::test_an_accepted_loss_is_told_where_one_of_its_ids_is_wanted",),
        "an accepted loss of a single transaction is told by no reader",
    ),
    Slip(
        "engine/inspect/status.py",
        "last=max((report.last_id for report in held if report.last_id is not None), default=None),",
        "last=held[-1].last_id if held else None,",
        ("tests/inspect/test_status.py::test_the_last_transaction_is_the_highest_whichever_segment_has_it",),
        "where a segment goes on behind the next one's end, the status says that there are fewer transactions than there are",
    ),
    Slip(
        "engine/log/parts.py",
        "if found is not None and found.offset > bounds[-1].offset and found.transaction_id",
        "if found is not None and found.transaction_id",
        ("tests/log/test_index_and_parts.py::test_a_cut_in_front_of_the_one_before_is_none_wherever_an_index_leads",),
        "an index that leads back to a copy of a record makes parts that overlap, and records are read twice",
    ),
    Slip(
        "engine/repair/arguments.py",
        "or type(one.value) is not kind:",
        "or not isinstance(one.value, kind):",
        ("tests/repair/test_arguments.py::test_arguments_of_another_kind_are_no_arguments",),
        "a plan file that says true for a mark sets it to 1",
    ),
    Slip(
        "engine/repair/embedded.py",
        "loss.stop - loss.first < 1:",
        "loss.stop - loss.first < 2:",
        ("tests/repair/test_loss_rules.py::test_the_index_has_a_record_inside_a_damaged_place",),
        "what a client stored inside a single damaged record is taken for the record behind it",
    ),
    Slip(
        "engine/repair/planners.py",
        '    if steps != PLAN.keys(repair.plan)["steps"]:',
        '    if len(steps) != len(PLAN.keys(repair.plan)["steps"]):',
        ("tests/cli/test_plan_files.py::test_a_plan_whose_steps_were_changed_is_refused",),
        "a plan in which somebody changed a step is carried out, but not as it reads",
    ),
    Slip(
        "engine/repair/recover.py",
        "accepted=ledger.of_partition(number),",
        "accepted=ledger.losses,",
        ("tests/repair/test_accepted_losses.py::test_a_torn_end_behind_an_accepted_loss_is_an_ordinary_one",),
        "a loss that was accepted in one partition excuses the same ids in every other",
    ),
    Slip(
        "engine/repair/recover_losses.py",
        "            if isinstance(proven, Proven) and len(proven) == whole.length:",
        "            if isinstance(proven, Proven):",
        ("tests/repair/test_plans_of_combinations.py::test_what_is_planned",),
        "intact records are replaced by a replica's that take another number of bytes, so that they cannot be what stood there",
    ),
    Slip(
        "engine/repair/survey.py",
        "    return touches and not before.record_ok and not before.unread",
        "    return touches and not before.unread",
        ("tests/repair/test_loss_rules.py::test_data_that_disagrees_with_its_checksum_is_a_loss_of_an_intact_record",),
        "an intact record whose data was sent wrong goes with the damaged one behind it",
    ),
    Slip(
        "engine/repair/salvage.py",
        "told = max((one.control.header.num_partitions for one in controls.found), default=0)",
        "told = min((one.control.header.num_partitions for one in controls.found), default=0)",
        ("tests/repair/test_salvage_bounds.py::test_how_many_partitions_control_files_tell_of_which_none_is_used",),
        "of two control files that were found the smaller one tells how many partitions the cluster has",
    ),
    Slip(
        "engine/repair/salvage_output.py",
        "disk.sync_directory(to.parent)\n    return written",
        "pass\n    return written",
        ("tests/repair/test_salvage_safety.py::test_a_failure_at_any_change_leaves_nothing_half_done",),
        "a power loss behind a salvage that was reported as done leaves no directory under its name",
    ),
    Slip(
        "engine/repair/recover_strays.py",
        "    if behind is not None and behind.first != found.next_id:",
        "    if behind is not None and behind.first < found.next_id:",
        ("tests/repair/test_plans_in_words.py::test_what_a_plan_says_in_words",),
        "a stray that leaves a gap in front of the next segment is given a name, and the gap is an acknowledged loss",
    ),
    Slip(
        "engine/compare/ranges.py",
        "segments[begin : last + 1]",
        "segments[begin : last]",
        ("tests/compare/test_range_bounds.py::test_a_range_is_given_its_segments_and_their_neighbours",),
        "what a replica lacks between a range's last segment and the next one is no damage, and it votes as one that has less",
    ),
    Slip(
        "engine/scan/carve.py",
        "min(len(batch), max_id + 1 - int(batch.transaction_id[0]))",
        "min(len(batch), max_id - int(batch.transaction_id[0]))",
        ("tests/scan/test_carve.py::test_bounds",),
        "the record with the highest id that is looked for is not found",
    ),
    Slip(
        "engine/scan/index_mask.py",
        "inside[phase + first * ENTRY_SIZE : phase + (last + 1) * ENTRY_SIZE] = True",
        "inside[phase + first * ENTRY_SIZE : phase + (last + 2) * ENTRY_SIZE] = True",
        ("tests/scan/test_index_mask.py::test_entries_are_found_at_any_place",),
        "a record right behind a piece of an index is not found",
    ),
    Slip(
        "engine/scan/code_cache.py",
        "not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)",
        "not status.st_mode & stat.S_IWOTH",
        ("tests/scan/test_code_cache.py::test_file_that_others_may_write_is_not_taken",),
        "code that anybody of the group could have put there judges the records",
    ),
    Slip(
        "engine/scan/list_loops.py",
        """        if data_sum != unsigned_at(memory, position + HEAD):
            status = BAD_DATA
            break
        if brief:
""",
        """        if brief:
""",
        ("tests/scan/test_wire_code.py",),
        "a record whose data is not what its client sent is served with a checksum that agrees",
    ),
    Slip(
        "engine/node/answers.py",
        '    (FRAME_HEADER.size + PREFIX.offset_of("session_id"), _SESSION),\n',
        "",
        ("tests/node/test_commit.py::test_many_answers_at_once_are_those_one_by_one",),
        "failures of requests of several sessions all name the first one's, and the others wait for an answer",
    ),
    Slip(
        "engine/node/partition_outage.py",
        "outage.returns is not Return.SPACE or time.monotonic() - self._out_since < age:",
        "outage.returns is not Return.SPACE:",
        ("tests/node/test_access_control.py",),
        "a look at the disk that began before it was full puts the partition back into sessions",
    ),
    Slip(
        "engine/node/readings.py",
        "local_low_water_mark=current.local_low_water_mark,",
        "local_low_water_mark=current.low_water_mark,",
        ("tests/node/test_readings.py::test_the_gauges_of_a_partition_are_those_of_its_struct",),
        "whoever watches a node believes that more, or less, is durable there than is",
    ),
    Slip(
        "engine/node/node.py",
        "                expected_partitions=partitions,\n",
        "",
        ("tests/node/test_lifecycle.py::test_a_directory_that_does_not_fit_the_cluster_ends_the_start",),
        "a directory with another number of partitions than the cluster's is served",
    ),
    Slip(
        "engine/inspect/storage_checks.py",
        "    yield from obstacles.together(around.findings)\n",
        "",
        ("tests/inspect/test_codes.py::test_each_kind_of_damage_has_its_code_its_severity_and_nothing_beside_it",),
        "damage of the control file is told neither by verify nor in a row of the findings",
    ),
    Slip(
        "engine/spark/finding_tasks.py",
        "able = [*self._before(run, lost, limits), *reports]",
        "able = [*self._before(run, listed, limits), *reports]",
        ("tests/spark/test_finding_tasks.py::test_what_was_given_up_is_told_by_the_last_task_where_no_other_has_it",),
        "transactions that were given up and came back count as lost where a partition is read by several tasks",
    ),
    Slip(
        "engine/spark/stream_losses.py",
        "if self.mark is None or self.mark < stop - 1:",
        "if self.mark is None or self.mark < stop:",
        ("tests/spark/test_stream_losses.py::test_a_loss_is_told_by_what_proves_it",),
        "the loss of acknowledged transactions up to the mark is told as one of records that nobody acknowledged",
    ),
    Slip(
        "engine/spark/read_options.py",
        "    refuse_unknown(options, KNOWN)\n    return replace",
        "    return replace",
        ("tests/spark/test_read_options.py::test_what_cannot_be_meant_is_refused",),
        "a misspelt option, one that should fail a query on loss for instance, is ignored",
    ),
    Slip(
        "engine/spark/record_arrays.py",
        "    if data_ok.all():",
        "    if data_ok[0]:",
        (
            "tests/spark/test_stream_directory.py::test_data_that_disagrees_with_its_own_checksum_is_given_with_its_finding",
        ),
        "a record whose data is not what was sent has no finding, unless it is the first of its batch",
    ),
    Slip(
        "engine/quorum/recovery.py",
        "elif one.marked and one.held >= _resolved(state):",
        "elif one.marked:",
        ("tests/quorum/test_one_step.py::test_one_that_lacks_what_is_kept_is_not_recovered_while_nobody_has_it",),
        "a session opens on a replica that has not copied yet, and its quorum is none",
    ),
    Slip(
        "engine/quorum/vote.py",
        "if count + (supporters[version] if len(candidates) == 1 else 0) >= self.quorum:",
        "if count + supporters[version] >= self.quorum:",
        ("tests/quorum/test_one_step.py::test_one_transaction_by_how_its_replicas_stand",),
        "of two versions of a transaction the first is kept for certain, and the other one, which may be right, is cut",
    ),
    Slip(
        "formats/lock_id.py",
        "(units[at] << 8 | units[at + 1])",
        "units[at + 1]",
        ("tests/formats/test_lock_id.py::test_lock_ids",),
        "a lock whose name is not in Latin letters has another id than a Java client's, and the two write over one another",
    ),
    Slip(
        "formats/request_id.py",
        "high = ((self.client & 0xFFFFFFFF) << 32) | (self.generation & 0xFFFFFFFF)",
        "high = ((self.client & 0xFFFFFFFF) << 32) | self.generation",
        ("tests/formats/test_request_id.py::test_bytes_words_and_schema_agree",),
        "a request id with a negative generation names another client",
    ),
    Slip(
        "formats/java_text.py",
        "    if len(encoded) > MAX_UTF:",
        "    if len(text) > MAX_UTF:",
        ("tests/formats/test_java_text.py::test_a_text_that_its_length_cannot_announce_is_refused",),
        "a long text of other than Latin letters gets a length that is not its own, and the rest of the message is misread",
    ),
    Slip(
        "formats/wire/codec.py",
        "        if position != len(view):\n",
        "        if position > len(view):\n",
        ("tests/formats/wire/test_hostile.py::test_left_over_bytes_are_an_error",),
        "a message with bytes left over, of another version or cut out of another, is taken for what it begins like",
    ),
)
