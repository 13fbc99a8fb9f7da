"""Slips in what Spark is handed, and in what it writes."""

from __future__ import annotations

from tests.mutation.trial import Slip

TABLES: tuple[Slip, ...] = (
    Slip(
        "engine/spark/record_arrays.py",
        "    high = len(batch) if last is None else min(len(batch), last + 1 - begins)",
        "    high = len(batch) if not last else min(len(batch), last + 1 - begins)",
        ("tests/spark/test_record_arrays.py",),
        "a filter up to the first record hands out all",
    ),
    Slip(
        "engine/spark/record_rows.py",
        "                if opened or part.number == 0:",
        "                if part.number == 0:",
        ("tests/spark/test_record_rows.py",),
        "a file with a bad place is read as if nothing were missing in it",
    ),
    Slip(
        "engine/spark/staging.py",
        "            if name.startswith(prefix(target)):",
        "            if name.startswith(target.name) and name != target.name:",
        ("tests/spark/test_writer_staging.py",),
        "a write removes what stands beside its target under a longer name",
    ),
    Slip(
        "engine/spark/handshake.py",
        "    for worker in workers:\n        if",
        "    for worker in workers[:1]:\n        if",
        ("tests/spark/test_start.py",),
        "a worker of another Python fails in the middle of a job",
    ),
    Slip(
        "engine/spark/selection.py",
        "self.nodes == frozenset()",
        "False",
        ("tests/spark/test_selection.py",),
        "filters that exclude each other read everything",
    ),
    Slip(
        "engine/spark/selection.py",
        "        if attribute is None or len(attribute) != 1:",
        "        if attribute is None:",
        ("tests/spark/test_selection.py",),
        "a filter on a field within a column is one on the column",
    ),
    Slip(
        "engine/spark/selection.py",
        "    if isinstance(one, spark.EqualNullSafe) and one.value is None:\n        return None\n",
        "",
        ("tests/spark/test_selection.py",),
        "a filter for no node is one for none of the nodes",
    ),
    Slip(
        "engine/spark/table_files.py",
        "        for task in tasks:\n            disk.sync_file(Path(task.path))\n",
        "",
        ("tests/spark/test_tables.py::test_a_table_has_its_name_once_all_of_it_is_on_disk",),
        "a table has its name before its files are on disk",
    ),
    Slip(
        "engine/spark/table_files.py",
        "        disk.sync_directory(staging)\n",
        "",
        ("tests/spark/test_tables.py::test_a_table_has_its_name_once_all_of_it_is_on_disk",),
        "a table has its name before the names of its files are on disk",
    ),
    Slip(
        "engine/spark/table_files.py",
        "        disk.sync_directory(request.target.absolute().parent)\n",
        "",
        ("tests/spark/test_tables.py::test_a_table_has_its_name_once_all_of_it_is_on_disk",),
        "a table that was written is gone after a power failure",
    ),
    Slip(
        "engine/spark/stream_rows.py",
        "None if one.data_ok else Code.DATA_CHECKSUM.value",
        "None",
        ("tests/spark/test_wanted_types.py",),
        "data that is not what was sent is handed out without a finding",
    ),
    Slip(
        "engine/spark/finding_tasks.py",
        "            seen.update(fresh)\n            yield from fresh",
        "            yield from fresh",
        ("tests/spark/test_finding_tasks.py",),
        "findings of segments that change are told once a round",
    ),
    Slip(
        "engine/spark/offsets.py",
        'f"{anchor.record_checksum:08x}",\n        "segment"',
        'f"{anchor.record_checksum:x}",\n        "segment"',
        ("tests/spark/test_stream_offsets.py",),
        "a checksum in an offset is written with fewer digits than everywhere else",
    ),
    Slip(
        "engine/spark/wanted_types.py",
        '"int": ("int", "bigint", "double")',
        '"int": ("int", "bigint", "double", "float")',
        ("tests/spark/test_wanted_types.py",),
        "a column of whole numbers is read into one that cannot hold them",
    ),
    Slip(
        "engine/spark/record_rows.py",
        "    yield from gathering.flush()\n    losses.check()",
        "    losses.check()\n    yield from gathering.flush()",
        ("tests/spark/test_record_rows.py",),
        "rows in front of a loss are not handed out before the read fails",
    ),
    Slip(
        "engine/spark/start.py",
        "            os.dup2(saved, 2)\n            os.close(saved)",
        "            os.dup2(saved, 2)",
        ("tests/spark/test_start.py",),
        "every start of a session leaves a file open",
    ),
)
