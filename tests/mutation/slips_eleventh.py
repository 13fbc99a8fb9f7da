"""Slips where one disk, name or peer of many does not answer, and in what was made quick for many of them."""

from __future__ import annotations

from tests.mutation.trial import Slip

_DISKS = ("tests/cli/test_disks_of_partitions.py",)

ELEVENTH: tuple[Slip, ...] = (
    Slip(
        "engine/repair/recover.py",
        "        draft.sees(number, found)\n",
        "",
        _DISKS,
        "a partition whose directory is gone while a repair is planned, and back when it is carried out, is given up",
    ),
    Slip(
        "engine/repair/rebuild_index.py",
        "    for noted in draft.seen.listings.keys() - {None, *view.partitions, *view.unlisted}:\n",
        "    for noted in set[int]():\n",
        _DISKS,
        "an index of such a partition is passed over",
    ),
    Slip(
        "engine/repair/set_partition.py",
        "        self._draft.sees(self._number, None)\n",
        "",
        _DISKS,
        "segment 0 is put in the place of one whose directory was gone for a moment",
    ),
    Slip(
        "engine/log/partition_directories.py",
        "    return _partitions(entry_kinds(path), PlaceKind.DIRECTORY, None)\n",
        "    return _partitions(entry_kinds(path), PlaceKind.DIRECTORY)\n",
        _DISKS,
        "a control file whose end is missing forgets the partitions whose disks are not mounted",
    ),
    Slip(
        "engine/repair/recover_control.py",
        "(found.segments or found.special or found.strays):",
        "(found.segments or found.strays):",
        _DISKS,
        "a partition whose files cannot be examined is no longer assigned",
    ),
    Slip(
        "engine/server/store_session.py",
        "            if self._closed.done():\n                return\n            try:\n",
        "            try:\n",
        ("tests/server/test_kept_batches.py",),
        "what a replica answers behind the end of a session counts",
    ),
    Slip(
        "engine/backup/source_files.py",
        "(names_put_aside(below) or not places.access(path).link(path))",
        "not places.access(path).link(path)",
        ("tests/backup/test_backups.py",),
        "a backup leaves out a partition that was put aside on another disk",
    ),
    Slip(
        "engine/inspect/vouching.py",
        "        if left_out := out_of_reach(self._storage):\n",
        "        if left_out := ():\n",
        ("tests/inspect/test_vouching.py",),
        "a manifest leaves out what is put aside on a disk that is not mounted",
    ),
    Slip(
        "engine/client/copying.py",
        "    await _check_cluster(source, destination)\n",
        "",
        ("tests/client/test_copying.py",),
        "another cluster's records are copied into an empty partition",
    ),
    Slip(
        "engine/metadata/embedded_file.py",
        "            time.sleep(_TRY_SECONDS)\n",
        "            time.sleep(0.1)\n",
        ("tests/metadata/test_session_loss.py",),
        "beside a process that writes without a pause nobody has a turn, and sessions end",
    ),
    Slip(
        "engine/client/copying.py",
        "            await self._check_end(switched_off=NodeAction.SWITCH_OFF in actions)\n",
        "",
        ("tests/client/test_copying.py",),
        "what a node acknowledged until its partition was off is cut by a copy",
    ),
    Slip(
        "engine/metadata/embedded_sessions.py",
        '    return begun != boot() and named not in ("", machine())\n',
        "    return False\n",
        ("tests/metadata/test_session_loss.py",),
        "a cluster is deleted from another machine while its log servers are at work",
    ),
    Slip(
        "engine/cluster/quorum_recovery.py",
        ", guard=_unserved(store, state, partition))",
        ")",
        ("tests/cluster/test_recover.py",),
        "a recovery shuts out a server that came back under its own id",
    ),
)
