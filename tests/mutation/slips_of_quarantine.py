"""Slips in what a repair keeps, gives back and holds, and in making it durable."""

from __future__ import annotations

from tests.mutation.trial import Slip

_QUARANTINE = "engine/durable/quarantine.py"
_UNDOABLE = "engine/durable/undoable.py"
_OF_EVERY_STAGE = ("tests/durable/test_quarantine.py::test_every_stage_is_durable_before_the_next_begins",)
_OF_WHAT_WAS_INTERRUPTED = (
    "tests/durable/test_quarantine.py::test_what_was_interrupted_is_settled_first_and_taken_back_latest_first",
)
_OF_WHAT_A_LATER_REPAIR_CHANGED = (
    "tests/durable/test_quarantine.py::test_what_a_later_repair_changed_is_told_apart_from_what_anybody_changed",
)
_OF_A_DIRECTORY_THAT_WAS_MOVED = (
    "tests/durable/test_quarantine.py::test_a_directory_that_was_moved_is_where_it_was_moved_to",
)

_OWNERSHIP = "engine/durable/ownership.py"
_OF_OWNERS = ("tests/durable/test_ownership.py", "tests/durable/test_quarantine.py")

QUARANTINE: tuple[Slip, ...] = (
    Slip(
        _OWNERSHIP,
        "            wanted.give(descriptor)\n    except BaseException:\n        os.close",
        "            pass\n    except BaseException:\n        os.close",
        _OF_OWNERS,
        "a repair by the superuser shuts the node out of its own directory",
    ),
    Slip(
        _OWNERSHIP,
        "    os.close(make_file(made, like))\n    try:\n        os.link(made, path)\n",
        "    os.close(make_file(path, like))\n    try:\n        os.link(path, made)\n",
        _OF_OWNERS,
        "the superuser's process that dies while it makes the lock shuts the node out of its own directory",
    ),
    Slip(
        _OWNERSHIP,
        "            mode &= ~0o070 | (mode & 0o007) << 3",
        "            pass",
        _OF_OWNERS,
        "records that one group may read can be read by another",
    ),
    Slip(
        "engine/durable/execution.py",
        "old = _build(directory / kept, taken, group.path) if kept else None",
        "old = _build(directory / kept, taken, directory / kept) if kept else None",
        _OF_OWNERS,
        "a kept copy of what only the node may read can be read by others",
    ),
    Slip(
        "engine/durable/restore.py",
        "        if not isinstance(error.__cause__, PermissionError):\n            raise",
        "        raise",
        ("tests/durable/test_quarantine.py", "tests/cli/test_undo.py"),
        "an undo by somebody who does not own the files never ends, and nobody can write",
    ),
    Slip(
        "engine/durable/disk.py",
        "WritableFile.create(beside, like=path)",
        "WritableFile.create(beside)",
        _OF_OWNERS,
        "a control file that a command has written anew can be read by everybody",
    ),
    Slip(
        "engine/durable/manifest.py",
        'source.optional_number("modified_ns", _TIME_BOUND)',
        'source.optional_number("modified_ns")',
        ("tests/durable/test_manifest_fields.py", "tests/repair/test_undo.py"),
        "a file of a far time makes a repair that shuts every writer out and that nobody can take back",
    ),
    Slip(
        "engine/durable/manifest.py",
        "decode_entry(data[:_LIMIT], entry.path, own)",
        "decode_entry(data, entry.path, own)",
        ("tests/durable/test_manifest_fields.py",),
        "a repair of very many places writes a manifest that nobody can read",
    ),
    Slip(
        _QUARANTINE,
        "        if control is not None and not control.is_file():\n            raise",
        "        if False:\n            raise",
        ("tests/durable/test_quarantine.py::test_a_directory_without_its_control_file_cannot_be_locked",),
        "a directory without control file is locked half",
    ),
    Slip(
        _QUARANTINE,
        "        write_entry(entry)  # before any copy: an entry with copies always has a manifest\n",
        "",
        _OF_EVERY_STAGE,
        "a crash leaves copies of which nothing says what they are",
    ),
    Slip(
        _QUARANTINE,
        "highest = max(highest, entry.number)",
        "highest = min(highest, entry.number)",
        ("tests/durable/test_quarantine.py::test_repairs_are_numbered_in_their_order",),
        "two repairs have one number, and undo takes the wrong one back first",
    ),
    Slip(
        _QUARANTINE,
        "    disk.make_directory(path)\n    disk.sync_directory(directory)\n    created",
        "    disk.make_directory(path)\n    created",
        _OF_EVERY_STAGE,
        "what a repair kept is gone after a power loss",
    ),
    Slip(
        _QUARANTINE,
        '    journal.record(entry.storage, "applied", entry)\n    write_entry(entry)',
        '    write_entry(entry)\n    journal.record(entry.storage, "applied", entry)',
        _OF_EVERY_STAGE,
        "a repair is applied of which the journal knows nothing",
    ),
    Slip(
        _QUARANTINE,
        "    settle_interrupted(left)\n    if not left",
        "    if not left",
        _OF_WHAT_WAS_INTERRUPTED,
        "a file is under neither of its names after a power loss",
    ),
    Slip(
        _QUARANTINE,
        "    for entry in reversed(left):",
        "    for entry in left:",
        _OF_WHAT_WAS_INTERRUPTED,
        "an older repair is taken back over a newer one",
    ),
    Slip(
        "engine/durable/execution.py",
        "            disk.sync_file(group.path)\n",
        "            pass\n",
        _OF_EVERY_STAGE,
        "what is kept is not what stays after a power loss",
    ),
    Slip(
        _UNDOABLE,
        "        if path in but or same_contents",
        "        if same_contents",
        _OF_WHAT_A_LATER_REPAIR_CHANGED,
        "a repair cannot be taken back for a file that may differ",
    ),
    Slip(
        _UNDOABLE,
        "                later.number > entry.number\n                and later.state",
        "                later.state",
        _OF_WHAT_A_LATER_REPAIR_CHANGED,
        "somebody is told to undo an earlier repair first",
    ),
    Slip(
        _UNDOABLE,
        "    _check_moves(entry, entries)\n",
        "",
        _OF_A_DIRECTORY_THAT_WAS_MOVED,
        "a directory that came back is moved over",
    ),
    Slip(
        _UNDOABLE,
        "or os.path.lexists(entry.storage / move.path):",
        "or (entry.storage / move.path).is_file():",
        _OF_A_DIRECTORY_THAT_WAS_MOVED,
        "a directory that came back is moved over",
    ),
    Slip(
        "engine/durable/directory_lock.py",
        "flags = os.O_RDWR | (os.O_CREAT if path != control_file else 0)",
        "flags = os.O_RDWR | os.O_CREAT",
        ("tests/durable/test_locks_and_names.py",),
        "locking a directory makes an empty control file",
    ),
    Slip(
        "engine/durable/flusher.py",
        "                if self._closed:\n                    return\n                self._idle",
        "                self._idle",
        ("tests/durable/test_flusher.py",),
        "a node that is stopped while it syncs never ends",
    ),
    Slip(
        _UNDOABLE,
        "if path in but or same_contents(stamp_as(path, file.after), file.after):\n            continue",
        "if path in but or same_contents(stamp_as(path, file.after), file.after):\n            break",
        ("tests/durable/test_quarantine.py::test_every_file_of_a_repair_has_to_be_as_it_left_it",),
        "an undo looks at the first file alone, and puts old bytes over what was written since into the others",
    ),
    Slip(
        "engine/storage/directory.py",
        "if released and not after.available and before.available:",
        "if released and before.available:",
        ("tests/storage/test_directory.py::test_availability_survives_and_the_documented_bytes_do_not_change",),
        "a partition that is available and is made so is switched off for a released node",
    ),
    Slip(
        "engine/durable/restore.py",
        "            if same_contents(now, file.after) and not (\n",
        "            if False and not (\n",
        ("tests/durable/test_ways_back.py",),
        "undo says that files are brought back whose kept copy is gone",
    ),
    Slip(
        "engine/durable/quarantine.py",
        "    journal.check(entry.storage)\n",
        "",
        ("tests/durable/test_quarantine.py",),
        "a repair is begun to be taken back that can end neither way",
    ),
)
