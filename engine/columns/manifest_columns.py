"""The manifest of a storage directory, an object that is stored in a file (engine/inspect/directory_manifest.py)."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from waltzctl.engine.columns.column import Column, ColumnKind, Columns, ObjectType, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import COUNT, COUNT32, HEX, INT32, INT64, KEY, LAYOUT, SIZE, TEXT, TIME

_SHA256 = ColumnKind("SHA-256", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, right=False)


def _control_header(manifest: Any) -> Any:
    return manifest.header.encode().hex()


_PARTITION = Columns(
    (
        Column("partition", COUNT32, "the partition"),
        Column("first_transaction_id", or_null(COUNT), "its first transaction"),
        Column("last_transaction_id", or_null(COUNT), "its last one"),
        Column("session_id", or_null(INT64), "the last session that wrote"),
        Column("low_water_mark", or_null(INT64), "its low-water mark"),
        Column("local_low_water_mark", or_null(INT64), "its local low-water mark"),
    )
)
_FILE = Columns(
    (
        Column("name", TEXT.described("Relative to the storage directory, with slashes."), "the file"),
        Column("size", SIZE, "how long it is"),
        Column("sha256", _SHA256, "of its bytes"),
    )
)
SIGNATURE = Columns(
    (
        Column("algorithm", ColumnKind("word", {"const": "ed25519"}), "how it is signed", given=True),
        Column("public_key", _SHA256, "the raw public key"),
        Column("signature", HEX, "the raw signature"),
    )
)

MANIFEST = ObjectType(
    name="manifest",
    meaning=(
        "What verify --manifest writes into a file: what a storage directory holds, without its path. sha256 is that of"
        " everything but sha256 and signature, as JSON with sorted keys, without spaces, in ASCII."
    ),
    columns=(
        Column("created", TIME, "when it was written"),
        Column("tool", TEXT, "what wrote it"),
        Column("cluster_key", KEY, "the cluster's key", read=attrgetter("header.cluster_key")),
        Column(
            "num_partitions",
            INT32,
            "how many partitions the cluster has",
            read=attrgetter("header.num_partitions"),
        ),
        Column("layout", LAYOUT, "documented or released"),
        Column(
            "control_header",
            HEX.described("The control file's first 128 bytes."),
            "the control file's header",
            read=_control_header,
        ),
        Column("partitions", listed(struct(_PARTITION)), "what each partition holds"),
        Column("files", listed(struct(_FILE)), "every file"),
        Column("sha256", _SHA256, "of the manifest itself", given=True),
        Column(
            "signature",
            or_null(
                struct(SIGNATURE).described(
                    "Over the line 'waltzctl.manifest/1 signature', a line feed, and the JSON that sha256 is of; the raw key"
                    " and signature in hex."
                )
            ),
            "who vouches for it",
            given=True,
        ),
    ),
)
