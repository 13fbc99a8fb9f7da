"""A sample of slips, made by hand: each would cost a user data or hide damage, and each must be noticed.

They are steps of one to each side, dropped checks, missing syncs and durable steps in another order, in the rooms that decide
what is damaged, what is lost and what may be cut.  Whoever moves a judgement moves its slips; whoever adds one adds its own.
"""

from __future__ import annotations

from tests.mutation.slips_eighth import EIGHTH
from tests.mutation.slips_eleventh import ELEVENTH
from tests.mutation.slips_fifth import FIFTH
from tests.mutation.slips_fourth import FOURTH
from tests.mutation.slips_ninth import NINTH
from tests.mutation.slips_of_backups import BACKUPS
from tests.mutation.slips_of_clients import CLIENTS
from tests.mutation.slips_of_clusters import CLUSTERS
from tests.mutation.slips_of_comparisons import COMPARISONS
from tests.mutation.slips_of_directories import DIRECTORIES
from tests.mutation.slips_of_findings import FINDINGS
from tests.mutation.slips_of_inspect import INSPECT
from tests.mutation.slips_of_monitoring import MONITORING
from tests.mutation.slips_of_node_reports import NODE_REPORTS
from tests.mutation.slips_of_nodes import NODES
from tests.mutation.slips_of_pages import PAGES
from tests.mutation.slips_of_plans import PLANS
from tests.mutation.slips_of_ports import PORTS
from tests.mutation.slips_of_quarantine import QUARANTINE
from tests.mutation.slips_of_quorum import QUORUM
from tests.mutation.slips_of_repair import REPAIR
from tests.mutation.slips_of_salvages import SALVAGES
from tests.mutation.slips_of_services import SERVICES
from tests.mutation.slips_of_settings import SETTINGS
from tests.mutation.slips_of_spark_tables import TABLES
from tests.mutation.slips_of_storage import STORAGE
from tests.mutation.slips_of_what_inspections_tell import INSPECTIONS
from tests.mutation.slips_second import SECOND
from tests.mutation.slips_seventh import SEVENTH
from tests.mutation.slips_sixth import SIXTH
from tests.mutation.slips_tenth import TENTH
from tests.mutation.slips_third import THIRD
from tests.mutation.trial import Slip

FIRST: tuple[Slip, ...] = (
    Slip(
        "engine/node/access_control.py",
        "max(partition.session_id, fences.get(partition.number))",
        "fences.get(partition.number)",
        ("tests/node/test_one_step.py",),
        "a directory of a released node, without fences, lets an older session append",
    ),
    Slip(
        "engine/log/assess.py",
        "if mark is not None and last < mark:",
        "if mark is not None and last < mark - 1:",
        ("tests/inspect/test_one_step.py",),
        "verify is clean with exactly one acknowledged transaction lost",
    ),
    Slip(
        "engine/repair/reconcile.py",
        "first > mark)",
        "first >= mark)",
        ("tests/repair/test_one_step.py",),
        "a plan cuts an acknowledged transaction without permission",
    ),
    Slip(
        "engine/storage/partition.py",
        "for segment in reversed(dropped):",
        "for segment in dropped:",
        ("tests/storage/test_one_step.py",),
        "a crash within a truncation leaves a gap",
    ),
    Slip(
        "engine/storage/segment_files.py",
        "            disk.unlink(path)\n        disk.sync_directory(directory, opened)",
        "            disk.unlink(path)",
        ("tests/storage/test_one_step.py",),
        "a power loss within a truncation leaves a later segment and takes an earlier one",
    ),
    Slip(
        "engine/storage/partition.py",
        """            self._control.lower_local_low_water_mark(self.number, after)
            try:
                self._cut_to(after + 1)
            except DiskWriteError as error:
                raise self._fail(error) from None
""",
        """            try:
                self._cut_to(after + 1)
            except DiskWriteError as error:
                raise self._fail(error) from None
            self._control.lower_local_low_water_mark(self.number, after)
""",
        ("tests/storage/test_one_step.py",),
        "a crash within a truncation that was permitted quarantines the partition",
    ),
    Slip(
        "engine/storage/segment_recovery.py",
        "return last is not None and last.end == self.size",
        "return last is not None",
        ("tests/storage/test_opening_one_step.py",),
        "a sealed segment with junk behind it opens for writing without a finding",
    ),
    Slip(
        "engine/log/index_comparison.py",
        "if entries < records else None",
        "if entries + 1 < records else None",
        ("tests/inspect/test_one_step.py",),
        "an index that is short by one entry is clean",
    ),
    Slip(
        "engine/inspect/segment_checks.py",
        "if not whole or scan.first_id != joined.next_id:",
        "if not whole:",
        ("tests/inspect/test_one_step.py",),
        "records that are missing exactly where two parts meet are silent",
    ),
    Slip(
        "engine/log/index_comparison.py",
        "if number == reader.begins and stored[0] != HEADER_SIZE:",
        "if number == reader.begins and stored[0] < HEADER_SIZE:",
        ("tests/inspect/test_one_step.py",),
        "a first entry that leads behind the first record is clean to a quick look",
    ),
    Slip(
        "engine/quorum/vote.py",
        "if voter or acknowledged:",
        "if voter:",
        ("tests/quorum/test_vote.py",),
        "an acknowledged record that an older session holds is called lost",
    ),
    Slip(
        "engine/storage/batch.py",
        "if 0 < batch.records < left and",
        "if 0 < batch.records <= left + 1 and",
        ("tests/storage/test_one_step.py",),
        "a record behind a checkpoint is written before the checkpoint is durable, and a wrong index is believed",
    ),
    Slip(
        "engine/spark/stream_directory.py",
        "min(current.low_water_mark, current.local_low_water_mark)",
        "max(current.low_water_mark, current.local_low_water_mark)",
        ("tests/spark/test_stream_directory.py",),
        "a stream hands on what recovery may take back",
    ),
    Slip(
        "engine/spark/offsets.py",
        """        mine = (self.transaction_id, self.request_id, self.record_checksum)
        return mine == (other.transaction_id, other.request_id, other.record_checksum)""",
        """        mine = (self.transaction_id, self.request_id)
        return mine == (other.transaction_id, other.request_id)""",
        ("tests/spark/test_stream_offsets.py",),
        "a record that was replaced under its request id goes unnoticed by a stream",
    ),
    Slip(
        "engine/node/hosted_storage.py",
        "before, access.availability = access.availability, self.storage.availability(number)",
        "before, access.availability = access.availability, self.storage.availability(numbers[0])",
        ("tests/node/test_one_step.py",),
        "a partition gets the availability of another one",
    ),
    Slip(
        "engine/durable/execution.py",
        "        if group.path.is_file():\n",
        "        if False:\n",
        ("tests/repair/test_one_step.py",),
        "what is kept of a file is not what a power loss leaves of it, and undo refuses",
    ),
    Slip(
        "engine/storage/retired.py",
        """        try:
            _forget(storage, control, number)
        except DiskFullError:
            try:
                _empty(directory / name)
                _forget(storage, control, number)
            except DiskError as error:
                failed[number] = error
                continue
        try:
            _delete(directory / name)
        except DiskError as error:
            failed[number] = error
""",
        """        _delete(directory / name)
        _forget(storage, control, number)
""",
        ("tests/storage/test_one_step.py",),
        "a partition that is assigned again after a crash refuses its sessions for good",
    ),
    Slip(
        "formats/segment.py",
        "int(match[1]) >= 2**63",
        "int(match[1]) > 2**63",
        ("tests/formats/test_segment.py",),
        "a stray name turns a clean verify into damage",
    ),
    Slip(
        "engine/inspect/record_checks.py",
        "        self.unlisted += other.unlisted\n",
        "",
        ("tests/inspect/test_one_step.py",),
        "damage that is beyond the list is not counted",
    ),
)

SLIPS: tuple[Slip, ...] = (
    *FIRST,
    *STORAGE,
    *DIRECTORIES,
    *QUARANTINE,
    *INSPECT,
    *REPAIR,
    *NODES,
    *SERVICES,
    *NODE_REPORTS,
    *PORTS,
    *MONITORING,
    *SETTINGS,
    *SECOND,
    *QUORUM,
    *PAGES,
    *BACKUPS,
    *CLIENTS,
    *CLUSTERS,
    *THIRD,
    *FOURTH,
    *FIFTH,
    *SIXTH,
    *SEVENTH,
    *EIGHTH,
    *NINTH,
    *TENTH,
    *ELEVENTH,
    *INSPECTIONS,
    *PLANS,
    *SALVAGES,
    *COMPARISONS,
    *TABLES,
    *FINDINGS,
)
