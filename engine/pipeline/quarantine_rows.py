"""Rows of quarantine: what is wrong where, and what to do about it, in the words of the catalogue of findings.

A row of `records` with a finding has a code and a place; the message and the remedy, a command, come from the catalogue.  Where
the command needs another replica, it names the first other source that is a directory.  Where the catalogue has no command for
the finding, the remedy is its advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from waltzctl.engine.catalogue import CATALOGUE, Code
from waltzctl.engine.findings import remedy_for
from waltzctl.engine.shell_words import shell_quote

if TYPE_CHECKING:
    import pyarrow as pa

    from waltzctl.engine.pipeline.agreement import Differs, Nowhere

DECODER = "decoder-refused"
"""The finding of a transaction that the project's decoder refused.  It is not about a storage, and so not in the catalogue."""
BAD_BYTES = frozenset(
    {Code.RECORD_CHECKSUM, Code.DATA_CHECKSUM, Code.RECORD_ORDER, Code.RECORD_LENGTH, Code.TORN_TAIL, Code.READ_ERROR}
)
"""Codes of records that are in the file with bytes that cannot be trusted; all other codes are about missing records."""
_CODES = frozenset(one.value for one in Code)
OF_FINDINGS = ("node", "partition", "segment", "transaction_id", "offset", "size", "finding", "missing")
OF_REFUSED = ("partition", "transaction_id", "refused")
"""The columns of `records` (`OF_FINDINGS`) and of `transactions` (`OF_REFUSED`) from which rows of quarantine are made."""
Row = dict[str, Any]


def finding_row(row: Mapping[str, Any], sources: Sequence[str]) -> Row:
    """The row for a row of `records` that has a finding."""
    node, partition, code = row["node"], row["partition"], row["finding"]
    kind = CATALOGUE[Code(code)] if code in _CODES else None
    meaning = code if kind is None else kind.meaning
    return {
        "node": node,
        "partition": partition,
        "transaction_id": row["transaction_id"],
        "finding": code,
        "message": f"{meaning} {_place(row)}",
        "remedy": None if kind is None else _remedy(kind.code, node, partition, sources),
        "missing": 1 if row["missing"] is None and code == Code.DATA_CHECKSUM else row["missing"],
    }


def _place(row: Mapping[str, Any]) -> str:
    words = [f"{row['node']}, partition {row['partition']}"]
    if row["segment"] is not None:
        words.append(f"segment {row['segment']}")
    if row["offset"] is not None:
        words.append(f"offset {row['offset']}" + ("" if row["size"] is None else f", {row['size']} bytes"))
    if row["transaction_id"] is not None:
        words.append(f"from transaction {row['transaction_id']} on")
    if row["missing"]:
        words.append(f"{row['missing']} missing")
    return ", ".join(words)


def _remedy(code: Code, node: str, partition: int | None, sources: Sequence[str]) -> str:
    kind = CATALOGUE[code]
    if "://" in node:  # read from a node's port or an object store: commands work on local files only
        return kind.what_to_do
    command = remedy_for(code, PurePosixPath(node), partition, kind.severity)
    if command is None:
        return kind.what_to_do
    others = [one for one in sources if one != node and "://" not in one]
    return command.replace("REPLICA", shell_quote(others[0])) if others else command


def differing_row(differs: Differs, partition: int, places: Sequence[str], copy: Mapping[str, Any]) -> Row:
    """The row for a copy that differs from the agreed version, with the vote."""
    request = ".".join(str(one) for one in copy["request_id"].values())
    held = (
        f"request {request}, header {copy['header']}, {copy['data_length']} bytes with checksum {copy['data_checksum']}"
    )
    count = f"{differs.votes} of {differs.of} replicas"
    if differs.agreed is None:
        vote = f"no version has the {differs.quorum} of {differs.of} replicas that are a quorum, {count} hold the same"
    else:
        vote = f"{count} hold what was agreed upon, among them {places[differs.agreed]}"
    others = [one for one in places if one != places[differs.replica]]
    compared = " ".join(shell_quote(one) for one in (places[differs.replica], *others[:1]))
    return {
        "node": places[differs.replica],
        "partition": partition,
        "transaction_id": differs.transaction_id,
        "finding": Code.REPLICA_DIFFERS.value,
        "message": f"{places[differs.replica]}, partition {partition}, transaction {differs.transaction_id}: this copy ({held})"
        f" differs: {vote}.",
        "remedy": f"waltzctl compare {compared} --partition {partition}",
        "missing": 1 if differs.agreed is None else 0,
    }


def nowhere_row(nowhere: Nowhere, partition: int, places: Sequence[str]) -> Row:
    """The row for committed transactions that no replica has intact; `node` is null."""
    ids = f"{nowhere.first}" if nowhere.stop == nowhere.first + 1 else f"{nowhere.first} to {nowhere.stop - 1}"
    return {
        "node": None,
        "partition": partition,
        "transaction_id": nowhere.first,
        "finding": Code.ACKNOWLEDGED_MISSING.value,
        "message": f"partition {partition}, transaction {ids}: committed, and none of {', '.join(places)} has an intact copy.",
        "remedy": "Name another replica or a backup (vault:VAULT::ID) in waltz.sources; what it holds is taken at the next run.",
        "missing": nowhere.stop - nowhere.first,
    }


def refused_row(row: Mapping[str, Any]) -> Row:
    """The row for a transaction that the decoder refused."""
    return {
        "node": None,
        "partition": row["partition"],
        "transaction_id": row["transaction_id"],
        "finding": DECODER,
        "message": f"partition {row['partition']}, transaction {row['transaction_id']}: decoder.py: {row['refused']}",
        "remedy": "Mend decode() in decoder.py, then waltzctl pipeline run DIR --full-refresh transactions.",
        "missing": 0,
    }


def finding_rows(rows: pa.Array, sources: Sequence[str]) -> pa.Array:
    """Structs of the columns `OF_FINDINGS` as structs of `DIFFERENCES`."""
    return _structs(finding_row(one, sources) for one in rows.to_pylist())


def refused_rows(rows: pa.Array) -> pa.Array:
    """Structs of the columns `OF_REFUSED` as structs of `DIFFERENCES`."""
    return _structs(map(refused_row, rows.to_pylist()))


def _structs(rows: Iterable[Row]) -> pa.Array:
    import pyarrow as pa

    from waltzctl.engine.pipeline.schemas import DIFFERENCES

    return pa.array(list(rows), pa.struct(list(DIFFERENCES)))
