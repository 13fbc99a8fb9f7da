"""Every object that a command prints, by its name."""

from __future__ import annotations

from waltzctl.engine.columns.column import ObjectType
from waltzctl.engine.columns.control_columns import CONTROL, PARTITION_INFO
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.engine.columns.manifest_columns import MANIFEST
from waltzctl.engine.columns.plan_columns import PLAN
from waltzctl.engine.columns.record_columns import RECORD
from waltzctl.engine.columns.segment_columns import INDEX_ENTRY, SEGMENT
from waltzctl.objects.backup_objects import BACKUP, DIFFERENCE, PRUNED, RESTORED, VAULT_CREATED, VAULT_REPAIRED
from waltzctl.objects.bench_objects import BENCH_RESULT
from waltzctl.objects.cluster_objects import CLUSTER_CREATED, CLUSTER_KEY, CLUSTER_STATE, CLUSTER_TOP, FORECAST
from waltzctl.objects.compare_objects import COMPARE_SUMMARY, PARTITION_COMPARISON
from waltzctl.objects.error_objects import ERROR
from waltzctl.objects.log_objects import HIGH_WATER_MARK, LOG_LOAD, LOG_RECORD, LOG_TRACE, LOG_VALIDATION
from waltzctl.objects.node_objects import MAX_TRANSACTION_ID, NODE_METRIC, NODE_PARTITION, NODE_PORT, NODE_SESSION
from waltzctl.objects.pages_objects import (
    FREE_RANGE,
    LOG_EDIT,
    PAGE_GC_RESULT,
    PAGE_SALVAGE_REPORT,
    PAGE_STORE_STATUS,
    PAGE_VERIFY_SUMMARY,
    PAGE_VERSION,
)
from waltzctl.objects.pipeline_objects import PIPELINE_CREATED, PIPELINE_GAP, PIPELINE_RUN
from waltzctl.objects.repair_objects import APPEND_RESULT, CLUSTER, RESULT, UNDO_ENTRY
from waltzctl.objects.salvage_objects import SALVAGE_REPORT, SALVAGED_CONTROL
from waltzctl.objects.serve_objects import LIVE, LOG, READY, SETTING
from waltzctl.objects.stats_objects import (
    STATS_BUCKET,
    STATS_CLIENT,
    STATS_GAP,
    STATS_HEADER,
    STATS_PARTITION,
    STATS_SIZE_CLASS,
    STATS_SUMMARY,
    STATS_UNTIMED,
)
from waltzctl.objects.status_objects import STORAGE_STATUS
from waltzctl.objects.verify_objects import VERIFY_SUMMARY

OBJECTS: dict[str, ObjectType] = {
    one.name: one
    for one in (
        *(RECORD, FINDING, VERIFY_SUMMARY, MANIFEST, CONTROL, PARTITION_INFO, SEGMENT, INDEX_ENTRY, STORAGE_STATUS),
        *(PLAN, RESULT, UNDO_ENTRY, ERROR, APPEND_RESULT, CLUSTER, PARTITION_COMPARISON, COMPARE_SUMMARY),
        *(VAULT_CREATED, BACKUP, RESTORED, DIFFERENCE, PRUNED, VAULT_REPAIRED),
        *(SALVAGE_REPORT, SALVAGED_CONTROL, READY, LIVE, SETTING, LOG, BENCH_RESULT),
        *(NODE_PARTITION, NODE_SESSION, MAX_TRANSACTION_ID, NODE_METRIC, NODE_PORT),
        *(STATS_PARTITION, STATS_SIZE_CLASS, STATS_CLIENT, STATS_HEADER, STATS_BUCKET, STATS_GAP, STATS_UNTIMED),
        *(
            STATS_SUMMARY,
            CLUSTER_STATE,
            CLUSTER_KEY,
            CLUSTER_CREATED,
            FORECAST,
            CLUSTER_TOP,
            LOG_TRACE,
            LOG_RECORD,
            HIGH_WATER_MARK,
            LOG_LOAD,
            LOG_VALIDATION,
        ),
        *(
            PAGE_VERIFY_SUMMARY,
            PAGE_STORE_STATUS,
            PAGE_VERSION,
            LOG_EDIT,
            FREE_RANGE,
            PAGE_GC_RESULT,
            PAGE_SALVAGE_REPORT,
        ),
        *(PIPELINE_CREATED, PIPELINE_RUN, PIPELINE_GAP),
    )
}
