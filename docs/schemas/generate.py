"""Write the JSON Schemas of everything that waltzctl prints: ``python docs/schemas/generate.py``.

Each file stands alone (2020-12) and is strict: a key that is not listed is a mistake.  ``tests/cli/test_schemas.py`` fails
when a file here is not what this program writes, or when a command prints an object that its schema refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from waltzctl.engine.columns.control import CONTROL, PARTITION_INFO
from waltzctl.engine.columns.finding import FINDING
from waltzctl.engine.columns.kinds import REQUEST_ID
from waltzctl.engine.columns.plan import PLAN
from waltzctl.engine.columns.record import RECORD
from waltzctl.engine.columns.segment import INDEX_ENTRY, SEGMENT

HERE = Path(__file__).resolve().parent

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INT32: Schema = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
INT64: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
BOOLEAN: Schema = {"type": "boolean"}
STRING: Schema = {"type": "string"}
PATH: Schema = {"type": "string", "description": "As it was given; bytes that are no UTF-8 are lone surrogates."}
CHECKSUM: Schema = {"type": "string", "pattern": "^[0-9a-f]{8}$"}
KEY: Schema = {"type": "string", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
BASE64: Schema = {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}
HEX: Schema = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
SEVERITY: Schema = {"enum": ["damage", "repairable", "note"]}
STATUS: Schema = {"enum": ["clean", "repairable", "damaged"]}
EXIT_STATUS: Schema = {"enum": [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 130]}
LAYOUT: Schema = {"enum": ["documented", "released"]}


def or_null(schema: Schema) -> Schema:
    """The value may be missing, which is null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": schema}


def keys(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """A strict object."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


PARTITION_STATUS = keys(
    {
        "partition": COUNT,
        "assigned": or_null(BOOLEAN),
        "readable": or_null(BOOLEAN),
        "writable": or_null(BOOLEAN),
        "session_id": or_null(INT64),
        "low_water_mark": or_null(INT64),
        "local_low_water_mark": or_null(INT64),
        "segments": or_null(COUNT),
        "bytes": or_null(COUNT),
        "records": or_null(COUNT),
        "first_transaction_id": or_null(INT64),
        "last_transaction_id": or_null(INT64),
        "last_written": or_null(TIME),
        "health": {
            "enum": ["ok", "repairable", "damaged", "unassigned", None],
            "description": "Null where it is not known: a node does not tell.",
        },
    }
)
ADDRESS: Schema = {"type": "string", "description": "host:port; an IPv6 address stands in brackets."}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
AMOUNT: Schema = {"type": "number", "minimum": 0}
LIVE_PARTITION = keys(
    {
        "partition": COUNT,
        "available": BOOLEAN,
        "session_id": INT64,
        "low_water_mark": INT64,
        "local_low_water_mark": INT64,
        "last_transaction_id": or_null(COUNT),
        "appends_per_second": AMOUNT,
        "queued": COUNT,
        "latency_p50_ms": or_null(AMOUNT),
        "latency_p99_ms": or_null(AMOUNT),
    }
)
PLACE = keys({"path": PATH, "offset": COUNT, "size": COUNT})
SALVAGED_PARTITION = keys(
    {
        "partition": COUNT,
        "first_transaction_id": {**or_null(COUNT), "description": "Null where nothing was found of it."},
        "last_transaction_id": or_null(COUNT),
        "records": COUNT,
        "segments": COUNT,
        "bytes": COUNT,
        "missing": listed(keys({"first": COUNT, "last": COUNT})),
        "session_id": INT64,
        "low_water_mark": INT64,
        "local_low_water_mark": INT64,
        "acknowledged_missing": {
            **listed(keys({"first": COUNT, "last": COUNT})),
            "description": "Behind the last one written: what the local low-water mark says was durable here.",
        },
        "witnesses": listed(keys({"witness": STRING, "records": COUNT})),
    }
)
FOUND_CONTROL = keys(
    {
        "path": PATH,
        "offset": COUNT,
        "layout": LAYOUT,
        "created": or_null(TIME),
        "num_partitions": COUNT,
        "structs": {**COUNT, "description": "Structs with a right checksum."},
        "used": BOOLEAN,
        "reason": STRING,
    }
)
RANGE_KEYS = {"first_transaction_id": COUNT, "last_transaction_id": COUNT}
REPLICA_COMPARISON = keys(
    {
        "path": PATH,
        "session_id": or_null(INT64),
        "low_water_mark": or_null(INT64),
        "local_low_water_mark": or_null(INT64),
        "last_transaction_id": or_null({**COUNT, "description": "The last intact one."}),
        "state": {"enum": ["equal", "behind", "ahead", "diverged", "damaged", "missing"]},
        "cut_after": or_null({**INT64, "description": "-1: everything is cut."}),
        "damaged": {**listed(COUNT), "description": "The first 10000 of damaged_records."},
        "restore_from": or_null(PATH),
        "damaged_records": COUNT,
        "votes": BOOLEAN,
        "outvoted": {**listed(keys(RANGE_KEYS)), "description": "Where other records are kept than those here."},
        "restore": listed(keys({**RANGE_KEYS, "from": or_null(PATH)})),
    }
)
DIVERGENT_RECORD = keys(
    {
        "transaction_id": COUNT,
        "paths": {**listed(PATH), "description": "The replicas that hold these very bytes."},
        "segment": COUNT,
        "offset": COUNT,
        "size": COUNT,
        "request_id": REQUEST_ID.schema,
        "header": INT32,
        "data_length": COUNT,
        "data_checksum": CHECKSUM,
        "record_checksum": CHECKSUM,
        "data_b64": or_null({**BASE64, "description": "The first 64 KiB of the data."}),
    }
)
VERDICT: Schema = {"enum": ["equal", "recoverable", "undecidable", "lost"]}

OBJECTS: dict[str, tuple[str, dict[str, Schema], tuple[str, ...]]] = {
    "verify-summary": (
        "The last object of verify.",
        {
            "status": STATUS,
            "exit_status": EXIT_STATUS,
            "partitions": COUNT,
            "segments": COUNT,
            "records": COUNT,
            "bytes": COUNT,
            "damage": COUNT,
            "repairable": COUNT,
            "notes": COUNT,
            "elapsed_seconds": {"type": "number", "minimum": 0},
            "modified": {"const": False},
            "complete": BOOLEAN,
            "manifest": {
                "enum": ["written", "not-written", "matches", "differs", "not-compared", "not-believed", None],
                "description": "What became of the manifest; null where none was asked for.",
            },
            "released_starts": {
                **or_null(BOOLEAN),
                "description": "Whether release 0.13.2 would start on every directory; null where --for released was not asked.",
            },
        },
        (),
    ),
    "manifest": (
        (
            "What verify --manifest writes into a file: what a storage directory holds, without its path. sha256 is that of"
            " everything but sha256 and signature, as JSON with sorted keys, without spaces, in ASCII."
        ),
        {
            "created": TIME,
            "tool": STRING,
            "cluster_key": KEY,
            "num_partitions": INT32,
            "layout": LAYOUT,
            "control_header": {**HEX, "description": "The control file's first 128 bytes."},
            "partitions": listed(
                keys(
                    {
                        "partition": COUNT,
                        "first_transaction_id": or_null(COUNT),
                        "last_transaction_id": or_null(COUNT),
                        "session_id": or_null(INT64),
                        "low_water_mark": or_null(INT64),
                        "local_low_water_mark": or_null(INT64),
                    }
                )
            ),
            "files": listed(
                keys(
                    {
                        "name": {"type": "string", "description": "Relative to the storage directory, with slashes."},
                        "size": COUNT,
                        "sha256": SHA256,
                    }
                )
            ),
            "sha256": SHA256,
            "signature": or_null(
                {
                    **keys({"algorithm": {"const": "ed25519"}, "public_key": SHA256, "signature": HEX}),
                    "description": (
                        "Over the line 'waltzctl.manifest/1 signature', a line feed, and the JSON that sha256 is of; the raw key"
                        " and signature in hex."
                    ),
                }
            ),
        },
        (),
    ),
    "status": (
        "What a storage directory holds and how it is.",
        {
            "path": PATH,
            "cluster_key": or_null(KEY),
            "layout": or_null(LAYOUT),
            "num_partitions": or_null(INT32),
            "locked_by": or_null({**COUNT, "description": "Process id; 0 where it is locked and the id is unknown."}),
            "partitions": listed(PARTITION_STATUS),
            "findings": listed(FINDING.strict),
        },
        (),
    ),
    "partition-comparison": (
        "How the replicas of a partition stand to each other, and what recovery would keep (compare).",
        {
            "partition": COUNT,
            "verdict": VERDICT,
            "clean_to": or_null(
                {
                    **COUNT,
                    "description": "The highest transaction that is kept; more may be, where that is undecidable.",
                }
            ),
            "first_divergence": or_null(COUNT),
            "replicas": listed(REPLICA_COMPARISON),
            "reason": STRING,
            "last_replicas": COUNT,
            "quorum": COUNT,
            "caught_up": {"type": "boolean", "description": "Something is kept that no quorum holds yet."},
            "undecided": listed(keys(RANGE_KEYS)),
            "lost": listed(keys(RANGE_KEYS)),
            "divergence": {**listed(DIVERGENT_RECORD), "description": "The versions of first_divergence."},
            "complete": BOOLEAN,
        },
        (),
    ),
    "compare-summary": (
        "The last object of compare; the verdicts count partitions.",
        {
            "status": VERDICT,
            "exit_status": EXIT_STATUS,
            "equal": COUNT,
            "recoverable": COUNT,
            "undecidable": COUNT,
            "lost": COUNT,
            "partitions": COUNT,
            "replicas": listed(PATH),
            "unassigned": {**listed(COUNT), "description": "Partitions that none of the directories has."},
            "records": COUNT,
            "bytes": COUNT,
            "findings": COUNT,
            "elapsed_seconds": {"type": "number", "minimum": 0},
            "modified": {"const": False},
            "complete": BOOLEAN,
            "plans": listed(
                keys(
                    {
                        "path": PATH,
                        "file": PATH,
                        "hash": STRING,
                        "steps": COUNT,
                        "loses_data": BOOLEAN,
                        "undecided": COUNT,
                    }
                )
            ),
            "differences": or_null(PATH),
            "in_use": listed(PATH),
        },
        (),
    ),
    "result": (
        "What a repair, an undo or undo --prune did; findings are those that remain.",
        {
            "plan_hash": STRING,
            "applied": BOOLEAN,
            "undo_id": or_null(STRING),
            "quarantine": or_null(PATH),
            "status": STRING,
            "exit_status": EXIT_STATUS,
            "findings": listed(FINDING.strict),
            "bytes_freed": {**COUNT, "description": "What undo --prune gave up; left out otherwise."},
        },
        ("bytes_freed",),
    ),
    "error": (
        "Why a command ended without its answer: the same as on stderr (any command, json and ndjson).",
        {
            "error": {
                "enum": sorted(
                    ("internal", "usage", "damaged", "not-waltz", "locked", "mismatch", "refused", "io-error")
                ),
                "description": "The name of the exit status.",
            },
            "exit_status": EXIT_STATUS,
            "message": STRING,
            "advice": or_null({"type": "string", "description": "What to do next."}),
            "findings": listed(FINDING.strict),
        },
        (),
    ),
    "append-result": (
        "What append made durable.",
        {
            "partition": COUNT,
            "first_transaction_id": or_null(INT64),
            "last_transaction_id": or_null(INT64),
            "records": COUNT,
            "bytes": COUNT,
            "mended": listed(FINDING.strict),
            "undo_ids": listed(STRING),
            "taken_back": listed(STRING),
        },
        (),
    ),
    "cluster": (
        "What create-cluster made.",
        {
            "cluster_key": KEY,
            "num_partitions": COUNT,
            "layout": LAYOUT,
            "opened_by": {**listed(STRING), "description": "Programs that can open directories of this layout."},
            "directories": listed(keys({"path": PATH, "assigned": listed(COUNT)})),
        },
        (),
    ),
    "salvage-report": (
        "What salvage found, wrote and left out: found = written + duplicates + superseded + doubtful_records + elsewhere.",
        {
            "path": PATH,
            "cluster_key": KEY,
            "num_partitions": COUNT,
            "num_partitions_from": {
                "enum": ["given", "control-file", "records"],
                "description": "What it goes by: --partitions, a control file that was found, or the highest partition found.",
            },
            "layout": LAYOUT,
            "exit_status": EXIT_STATUS,
            "sources": COUNT,
            "bytes": COUNT,
            "headers": COUNT,
            "found": COUNT,
            "written": COUNT,
            "duplicates": COUNT,
            "superseded": COUNT,
            "doubtful_records": COUNT,
            "elsewhere": COUNT,
            "missing": COUNT,
            "acknowledged_missing": COUNT,
            "marks_unknown": {
                **listed(COUNT),
                "description": "Partitions whose marks the control file used does not tell.",
            },
            "controls": listed(FOUND_CONTROL),
            "partitions": listed(SALVAGED_PARTITION),
            "conflicts": listed(
                keys(
                    {
                        "partition": COUNT,
                        "transaction_id": COUNT,
                        "kept": PLACE,
                        "others": listed(PLACE),
                        "reason": STRING,
                    }
                )
            ),
            "doubtful": listed(
                keys(
                    {
                        "path": PATH,
                        "offset": COUNT,
                        "length": COUNT,
                        "first_transaction_id": COUNT,
                        "last_transaction_id": COUNT,
                        "records": COUNT,
                        "reason": STRING,
                    }
                )
            ),
            "unreadable": listed(keys({"path": PATH, "offset": COUNT, "length": COUNT})),
            "findings": listed(FINDING.strict),
        },
        (),
    ),
    "salvaged-control": (
        "The control file that salvage --control found and wrote.",
        {
            "path": PATH,
            "cluster_key": KEY,
            "num_partitions": COUNT,
            "layout": LAYOUT,
            "exit_status": EXIT_STATUS,
            "sources": COUNT,
            "bytes": COUNT,
            "marks_unknown": {**listed(COUNT), "description": "Partitions whose pair was lost; it stays invalid."},
            "controls": listed(FOUND_CONTROL),
            "findings": listed(FINDING.strict),
        },
        (),
    ),
    "ready": (
        "A node that answers at all its ports (serve; also what --ready-file holds).",
        {
            "pid": COUNT,
            "host": {"type": "string", "description": "The address that was bound."},
            "port": PORT,
            "admin_port": PORT,
            "http_port": or_null(PORT),
            "tls": BOOLEAN,
            "cluster_key": KEY,
            "num_partitions": COUNT,
            "directory": PATH,
        },
        (),
    ),
    "live": (
        "How a node does (serve --live); rates since the object before, latencies of appends in the last minutes.",
        {
            "time": TIME,
            "connections": keys({"data": COUNT, "admin": COUNT, "http": COUNT}, ("http",)),
            "partitions": listed(LIVE_PARTITION),
        },
        (),
    ),
    "setting": (
        "A setting of a node and the value that holds (serve --show-config); a secret's value is hidden.",
        {
            "key": {"type": "string", "description": "Its key in the configuration file."},
            "value": {"type": ["string", "number", "boolean", "null"]},
            "source": {"type": "string", "description": "Who says so: an option, a variable, FILE:LINE, or default."},
            "variable": {"type": "string", "pattern": "^WALTZCTL_SERVE_[A-Z0-9_]+$"},
            "meaning": STRING,
        },
        (),
    ),
    "log": (
        "A line of a node's log on stderr (serve --log-format json).",
        {
            "time": TIME,
            "level": {"enum": ["debug", "info", "warning", "error", "critical"]},
            "logger": STRING,
            "message": STRING,
            "fields": {"type": "object", "description": "What belongs to the message, by name."},
            "trace": or_null({"type": "string", "description": "Where an error came from."}),
        },
        (),
    ),
    "bench-result": (
        "What a load on a node measured (bench).",
        {
            "node": STRING,
            "tls": BOOLEAN,
            "operation": {"enum": ["append", "read"]},
            "batch": {"type": "integer", "minimum": 1, "description": "Records in a request, or asked for."},
            "data_size": or_null({**COUNT, "description": "Bytes of a record's data; null when reading."}),
            "in_flight": {"type": "integer", "minimum": 1, "description": "Requests of each partition."},
            "connections": {"type": "integer", "minimum": 1},
            "warm_up_seconds": AMOUNT,
            "elapsed_seconds": AMOUNT,
            "requests": COUNT,
            "transactions": COUNT,
            "data_bytes": COUNT,
            "requests_per_second": AMOUNT,
            "transactions_per_second": AMOUNT,
            "data_bytes_per_second": AMOUNT,
            "latency_seconds": keys(
                {name: or_null(AMOUNT) for name in ("min", "mean", "p50", "p90", "p99", "p999", "max")}
            ),
            "truncated": {"type": "boolean", "description": "Whether what was appended was removed again."},
            "partitions": listed(
                keys(
                    {
                        "partition": COUNT,
                        "session_id": INT64,
                        "last_transaction_id_before": or_null(COUNT),
                        "last_transaction_id_after": or_null(COUNT),
                    }
                )
            ),
            "histogram": listed(keys({"up_to_seconds": AMOUNT, "requests": COUNT})),
        },
        (),
    ),
    "node-partition": (
        "A partition as a node tells it (node list); what it does not tell is null.",
        {
            "node": ADDRESS,
            "partition": COUNT,
            "assigned": or_null(BOOLEAN),
            "available": or_null({"type": "boolean", "description": "Reads and writes are both on."}),
            "readable": or_null(BOOLEAN),
            "writable": or_null(BOOLEAN),
            "session_id": or_null(INT64),
            "low_water_mark": or_null(INT64),
            "local_low_water_mark": or_null(INT64),
            "last_transaction_id": or_null({**INT64, "description": "-1 where there is none."}),
            "queued_requests": or_null(INTEGER),
            "out_of_service": or_null(
                {
                    "type": "string",
                    "description": "The failure code of what keeps it out of sessions, such as disk-full.",
                }
            ),
        },
        (),
    ),
    "node-session": (
        "The last session of a partition of a node (node session); -1 each where there was none.",
        {
            "node": ADDRESS,
            "partition": COUNT,
            "session_id": INT64,
            "low_water_mark": INT64,
            "local_low_water_mark": INT64,
        },
        (),
    ),
    "max-transaction-id": (
        "The last transaction of a partition of a node, -1 where there is none (node max-transaction-id).",
        {
            "node": ADDRESS,
            "partition": COUNT,
            "session_id": INT64,
            "max_transaction_id": INT64,
            "offline": BOOLEAN,
        },
        (),
    ),
    "node-metric": (
        "A metric of a node (node metrics): a gauge has a value, all others a count. Seconds, and events a second.",
        {
            "node": ADDRESS,
            "partition": or_null({**COUNT, "description": "Null for the node's own."}),
            "name": STRING,
            "kind": {"enum": ["gauge", "counter", "meter", "timer", "histogram"]},
            "value": {"type": ["number", "string", "array", "null"], "items": INTEGER},
            "count": or_null(INTEGER),
            **dict.fromkeys(
                (
                    *("mean_rate", "m1_rate", "m5_rate", "m15_rate"),
                    *("min", "mean", "max", "stddev", "p50", "p75", "p95", "p98", "p99", "p999"),
                ),
                or_null({"type": "number"}),
            ),
        },
        (),
    ),
    "node-port": (
        "Whether a port of a node answers and belongs to the cluster (node validate).",
        {
            "node": ADDRESS,
            "port": {"enum": ["data", "admin"]},
            "tls": BOOLEAN,
            "ok": BOOLEAN,
            "code": or_null({"type": "string", "description": "The node's word for what is wrong, where it has one."}),
            "message": or_null(STRING),
        },
        (),
    ),
    "stats-partition": (
        "A partition's numbers (stats). Rates are means over the segments whose times are known.",
        {
            "path": PATH,
            "partition": or_null(INTEGER),
            "segments": COUNT,
            "records": COUNT,
            "bytes": {**COUNT, "description": "On disk: 40 and the data of each record."},
            "first_transaction_id": or_null(INT64),
            "last_transaction_id": or_null(INT64),
            "gaps": COUNT,
            "missing": {**COUNT, "description": "Ids that no record has."},
            "repeated": {**COUNT, "description": "Records with an id that another one has as well."},
            "from": or_null(TIME),
            "to": or_null(TIME),
            "timed_records": {**COUNT, "description": "Records of the segments whose times are known."},
            "timed_bytes": COUNT,
            "timed_seconds": {**AMOUNT, "description": "How long these segments took."},
            "records_per_second": or_null(AMOUNT),
            "bytes_per_second": or_null(AMOUNT),
        },
        (),
    ),
    "stats-size-class": (
        "Records by the length of their data (stats).",
        {"lowest": COUNT, "highest": COUNT, "records": COUNT, "bytes": COUNT},
        (),
    ),
    "stats-client": (
        "A client among those with most records (stats).",
        {
            "client": INT32,
            "records": COUNT,
            "bytes": COUNT,
            "partitions": COUNT,
            "lowest_generation": INT32,
            "highest_generation": INT32,
        },
        (),
    ),
    "stats-header": (
        "A header value among those that most records have (stats).",
        {"header": INT32, "records": COUNT, "bytes": COUNT},
        (),
    ),
    "stats-bucket": (
        "A piece of a series (stats): over time, which is estimated, or over transaction ids, which is exact.",
        {
            "axis": {"enum": ["time", "transaction"]},
            "by": {"enum": ["partition", "client", "size-class"], "description": "What the series is about."},
            "path": or_null(PATH),
            "partition": or_null(INTEGER),
            "client": or_null(INT32),
            "lowest": or_null({**COUNT, "description": "Smallest data length of the size class."}),
            "highest": or_null(COUNT),
            "from": or_null(TIME),
            "to": or_null({**TIME, "description": "Exclusive."}),
            "first_transaction_id": or_null(INT64),
            "last_transaction_id": or_null({**INT64, "description": "Inclusive."}),
            "records": COUNT,
            "bytes": COUNT,
            "records_per_second": or_null(AMOUNT),
            "bytes_per_second": or_null(AMOUNT),
        },
        (),
    ),
    "stats-gap": (
        "Transaction ids that no record has (stats).",
        {
            "path": PATH,
            "partition": or_null(INTEGER),
            "first_transaction_id": INT64,
            "last_transaction_id": INT64,
            "transactions": COUNT,
            "cause": or_null({"type": "string", "description": "Code of the finding at the first of them."}),
        },
        (),
    ),
    "stats-untimed": (
        "A segment whose records are in no series over time (stats).",
        {
            "path": PATH,
            "partition": or_null(INTEGER),
            "segment": INTEGER,
            "records": COUNT,
            "bytes": COUNT,
            "reason": STRING,
        },
        (),
    ),
    "stats-summary": (
        "The last object of stats.",
        {
            "status": STATUS,
            "exit_status": EXIT_STATUS,
            "partitions": COUNT,
            "segments": COUNT,
            "records": COUNT,
            "bytes": COUNT,
            "from": or_null(TIME),
            "to": or_null(TIME),
            "bucket_seconds": AMOUNT,
            "untimed_segments": COUNT,
            "untimed_records": COUNT,
            "clients": {**COUNT, "description": "Told apart; all of them when clients_exact."},
            "clients_exact": BOOLEAN,
            "clients_missed_records": {**COUNT, "description": "Any one client may have so many more than is said."},
            "clients_missed_bytes": COUNT,
            "client_series_missed_records": {**COUNT, "description": "And so many more in its series over time."},
            "headers": COUNT,
            "headers_exact": BOOLEAN,
            "headers_missed_records": COUNT,
            "headers_missed_bytes": COUNT,
            "gaps": COUNT,
            "missing": COUNT,
            "damage": COUNT,
            "repairable": COUNT,
            "notes": COUNT,
            "elapsed_seconds": AMOUNT,
            "modified": {"const": False},
        },
        (),
    ),
    "undo-entry": (
        "A repair whose bytes are kept (undo --list).",
        {
            "id": STRING,
            "command": STRING,
            "arguments": listed(STRING),
            "created": {"type": "string", "description": "RFC 3339 in UTC."},
            "state": {
                "enum": [
                    "preparing",
                    "prepared",
                    "applied",
                    "rolling-back",
                    "undoing",
                    "undone",
                    "rolled-back",
                    "pruned",
                ]
            },
            "plan_hash": STRING,
            "quarantine": PATH,
            "files": listed(STRING),
        },
        (),
    ),
}


DESCRIBED = {one.name: one for one in (RECORD, FINDING, CONTROL, PARTITION_INFO, SEGMENT, INDEX_ENTRY, PLAN)}


def schema_of(name: str) -> Schema:
    """The whole schema of an object."""
    if name in DESCRIBED:
        return DESCRIBED[name].schema
    description, properties, optional = OBJECTS[name]
    own = {"schema": {"const": f"waltzctl.{name}/1"}, "type": {"const": name}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"waltzctl.{name}/1",
        "title": name,
        "description": description,
        **keys({**own, **properties}, optional),
    }


def files() -> dict[str, str]:
    """File name to contents."""
    return {f"{name}.schema.json": json.dumps(schema_of(name), indent=2) + "\n" for name in (*DESCRIBED, *OBJECTS)}


if __name__ == "__main__":
    for file_name, text in files().items():
        (HERE / file_name).write_text(text)
