"""Slips in salvages: what is attributed to which source, and what stays open."""

from __future__ import annotations

from tests.mutation.trial import Slip

SALVAGES: tuple[Slip, ...] = (
    Slip(
        "engine/repair/salvage_output.py",
        "            until_complete.pop_all()\n",
        "            pass\n",
        ("tests/repair/test_salvage_safety.py",),
        "the files of a salvage are closed before anything is written into them",
    ),
    Slip(
        "engine/repair/salvage_sources.py",
        "        self._open.pop(source, None)\n        self._open",
        "        self._open",
        ("tests/repair/test_salvage_safety.py",),
        "a source that was closed for another is used as if it were open",
    ),
    Slip(
        "engine/repair/salvage_control_file.py",
        "cluster_key=key, journaled=False)",
        "cluster_key=control.header.cluster_key, journaled=False)",
        ("tests/repair/test_salvage_control.py",),
        "a control file made anew has the cluster key of the damaged one",
    ),
    Slip(
        "engine/repair/salvage_control_file.py",
        "return joined.pop() if len(joined) == 1 else None",
        "return joined.pop() if joined else None",
        ("tests/repair/test_salvage_control.py",),
        "of several partition counts one is chosen at will",
    ),
    Slip(
        "engine/repair/salvage_control.py",
        "        if current.marks != NEVER if current.assigned is None else current.assigned:",
        "        if current.marks != NEVER:",
        ("tests/repair/test_salvage_control.py",),
        "a partition that was never assigned is salvaged as one that was",
    ),
    Slip(
        "engine/repair/store_kinds.py",
        " and not is_named(path / CONTROL_FILE_NAME)",
        "",
        ("tests/repair/test_salvage_control.py",),
        "a storage directory is taken for a store of pages",
    ),
    Slip(
        "engine/repair/salvage_attribution.py",
        "if len(+agreeing) > 1 else",
        "if len(agreeing) > 1 else",
        ("tests/repair/test_salvage.py",),
        "a key on which nothing agrees makes an agreement doubtful",
    ),
    Slip(
        "engine/repair/salvage_attribution.py",
        "header = item if item.kind is not HeaderKind.CONTROL else None",
        "header = item",
        ("tests/repair/test_salvage.py",),
        "a segment's records are put under the header of a control file",
    ),
    Slip(
        "engine/repair/salvage_attribution.py",
        "            if item.source != source:\n                result.append(HeaderStretch(None",
        "            if not result:\n                result.append(HeaderStretch(None",
        ("tests/repair/test_salvage.py",),
        "the bytes of a second source go under the header of the first",
    ),
    Slip(
        "engine/repair/recover_control.py",
        "        if partitions is None or info.partition in partitions:\n            mender",
        "        if True:\n            mender",
        ("tests/repair/test_rules_of_recoveries.py",),
        "a recover of one partition mends the structs of others",
    ),
    Slip(
        "engine/repair/salvage_selection.py",
        "transaction_id not in one.run.data_damaged",
        "not one.run.data_damaged",
        ("tests/repair/test_salvage_conflicts.py",),
        "a run with one damaged record has none that is intact",
    ),
)
