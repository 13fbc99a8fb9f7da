"""Slips in repairs that are planned, carried out, taken back and pruned."""

from __future__ import annotations

from tests.mutation.trial import Slip

PLANS: tuple[Slip, ...] = (
    Slip(
        "engine/repair/planners.py",
        "        agreed=arguments.agreed,\n",
        "",
        ("tests/repair/test_arguments.py",),
        "a plan from a comparison is made anew without what was agreed",
    ),
    Slip(
        "engine/repair/planners.py",
        "return partitions[0] if len(partitions) == 1 else None",
        "return partitions[0] if partitions else None",
        ("tests/repair/test_arguments.py",),
        "a plan file of several partitions is carried out for the first of them",
    ),
    Slip(
        "engine/repair/apply.py",
        "            with with_roll_backs(taken_back):\n                status, findings = _verified(repair, exclusive=True)",
        "            status, findings = _verified(repair, exclusive=True)",
        ("tests/repair/test_roll_back_first.py",),
        "after an undo what was taken back is told as new",
    ),
    Slip(
        "engine/repair/apply.py",
        "for entry in (*done.entries, *done.taken_back) for number",
        "for entry in done.entries for number",
        ("tests/repair/test_roll_back_first.py",),
        "the verify behind an undo leaves out the partitions whose repair was taken back",
    ),
    Slip(
        "engine/repair/recover_strays.py",
        '        except DiskReadError as error:\n            why = f"it cannot be read: {error}"\n',
        "        except DiskReadError:\n            why = None\n",
        ("tests/repair/test_rules_of_recoveries.py",),
        "a stray segment that cannot be read is taken for one that fits",
    ),
    Slip(
        "engine/repair/recover_strays.py",
        "before.survey.next_id != first:",
        "before.survey.next_id < first:",
        ("tests/repair/test_rules_of_recoveries.py",),
        "a stray segment that ends behind where the next one begins is put in place",
    ),
    Slip(
        "engine/repair/recover_ledger.py",
        "    restored = restored_by(draft.steps[steps_before:])",
        "    restored = restored_by(draft.steps)",
        ("tests/repair/test_accepted_losses.py",),
        "what an earlier partition's steps do is written down as this one's loss",
    ),
    Slip(
        "engine/repair/recover_ledger.py",
        "yield from without((part.survey.begins, part.survey.next_id), lost)",
        "yield (part.survey.begins, part.survey.next_id)",
        ("tests/repair/test_accepted_losses.py",),
        "what a segment has lost inside counts as held by it",
    ),
    Slip(
        "engine/repair/prune.py",
        " | {str(move.partition) for move in entry.moves}",
        "",
        ("tests/repair/test_prune.py",),
        "an undo directory of which files still wait for it is pruned",
    ),
    Slip(
        "engine/repair/prune.py",
        "len(applied) - keep,",
        "len(entries) - keep,",
        ("tests/repair/test_prune.py",),
        "what is kept is counted with entries that were never carried out",
    ),
    Slip(
        "engine/repair/prune.py",
        "            stay |= _touched_names(entry)",
        "            stay = _touched_names(entry)",
        ("tests/repair/test_prune.py",),
        "only the last entry's places protect what an undo needs",
    ),
    Slip(
        "engine/repair/set_partition.py",
        "data = encode_slot(self._number, session) + bytes(FENCE_PAIR.size - FENCE_SLOT.size)",
        "data = encode_slot(self._number, session)",
        ("tests/repair/test_set_partition.py",),
        "a fence is written as one slot, and the second one keeps an older session",
    ),
    Slip(
        "engine/repair/reconcile.py",
        "self.removed += [part for part in behind if not part.untouchable]",
        "self.removed += behind",
        ("tests/repair/test_plans_of_agreements.py",),
        "a file that must not be touched is removed behind a cut",
    ),
    Slip(
        "engine/repair/salvage.py",
        "if one.run.request_partition not in (None, number)",
        "if one.run.request_partition != number",
        ("tests/repair/test_salvage.py",),
        "records of which no partition can be told are left out of a salvage",
    ),
    Slip(
        "engine/repair/undoing.py",
        "    if taken and (entry_id is None or entry_id in {entry.id for entry in taken}):",
        "    if taken and entry_id is None:",
        ("tests/repair/test_roll_back_first.py",),
        "an undo of an entry that is taken back already is begun again",
    ),
    Slip(
        "engine/repair/undoing.py",
        "for entry in entries for file in entry.files)",
        "for entry in entries[-1:] for file in entry.files)",
        ("tests/repair/test_roll_back_first.py",),
        "an undo looks at the files of its last entry only",
    ),
    Slip(
        "engine/repair/undoing.py",
        (
            "    with DirectoryLock.acquire(storage, storage / CONTROL_FILE_NAME):\n"
            "        return undo_locked(storage, entry_id, allow_data_loss=allow_data_loss)"
        ),
        "    return undo_locked(storage, entry_id, allow_data_loss=allow_data_loss)",
        ("tests/repair/test_roll_back_first.py",),
        "an undo changes a directory that a server holds",
    ),
    Slip(
        "engine/repair/recover_losses.py",
        "replace(found, severity=Severity.DAMAGE), part, why",
        "found, part, why",
        ("tests/repair/test_plans_of_combinations.py",),
        "damage that stays is told as repairable",
    ),
    Slip(
        "engine/repair/repaired_segments.py",
        (
            "    except DiskReadError as error:\n"
            "        context.find(Code.READ_ERROR, part.data_path, str(error), segment=part.first, offset=error.offset)"
        ),
        "    except DiskReadError:\n        pass",
        ("tests/repair/test_rules_of_recoveries.py",),
        "an unreadable file of a partition is passed over without a word",
    ),
    Slip(
        "engine/repair/repaired_segments.py",
        "    context.draft.sources |= verdict.sources\n",
        "",
        ("tests/repair/test_recover_headers.py",),
        "a plan does not name the replica that it copied from",
    ),
)
