"""Waltz storage from the command line and from Python: the names that programs import, each loaded at its first use.

``from waltzctl import StorageClient, open_storage``: see docs/python.md.  Everything else below this package may change
between versions.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltzctl.engine.client.admin_client import AdminClient
    from waltzctl.engine.client.client_options import ClientOptions
    from waltzctl.engine.client.log_client import LogClient
    from waltzctl.engine.client.log_transaction import Draft, Transaction
    from waltzctl.engine.client.open_log import open_log_client
    from waltzctl.engine.client.sql_applier import SqlDatabase, SqlTransaction, apply_feed
    from waltzctl.engine.client.storage_client import StorageClient
    from waltzctl.engine.errors import DeadlineError, InvalidRequestError, PeerUnreachableError, WaltzError
    from waltzctl.engine.findings import Code, Finding, Severity
    from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records
    from waltzctl.engine.inspect.status import StorageStatus, storage_status
    from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
    from waltzctl.engine.inspect.verify import verify
    from waltzctl.engine.net.tls import client_context
    from waltzctl.engine.net.tls_options import TlsOptions
    from waltzctl.engine.spark.data_source import WaltzDataSource
    from waltzctl.engine.spark.shipping import write_archive
    from waltzctl.engine.spark.start import spark_session
    from waltzctl.engine.storage.directory import StorageDirectory, open_storage
    from waltzctl.engine.storage.partition import Partition
    from waltzctl.engine.storage.storage_options import StorageOptions
    from waltzctl.formats.request_id import RequestId
    from waltzctl.formats.segment import Record
    from waltzctl.formats.wire.records import WireRecord

__version__ = "0.1.0"

_MODULES = {
    "AdminClient": "waltzctl.engine.client.admin_client",
    "ClientOptions": "waltzctl.engine.client.client_options",
    "Code": "waltzctl.engine.findings",
    "DeadlineError": "waltzctl.engine.errors",
    "Draft": "waltzctl.engine.client.log_transaction",
    "DumpedRecord": "waltzctl.engine.inspect.dump_records",
    "Finding": "waltzctl.engine.findings",
    "InvalidRequestError": "waltzctl.engine.errors",
    "LogClient": "waltzctl.engine.client.log_client",
    "Partition": "waltzctl.engine.storage.partition",
    "PeerUnreachableError": "waltzctl.engine.errors",
    "Record": "waltzctl.formats.segment",
    "RequestId": "waltzctl.formats.request_id",
    "Severity": "waltzctl.engine.findings",
    "SqlDatabase": "waltzctl.engine.client.sql_applier",
    "SqlTransaction": "waltzctl.engine.client.sql_applier",
    "StorageClient": "waltzctl.engine.client.storage_client",
    "StorageDirectory": "waltzctl.engine.storage.directory",
    "StorageOptions": "waltzctl.engine.storage.storage_options",
    "StorageStatus": "waltzctl.engine.inspect.status",
    "TlsOptions": "waltzctl.engine.net.tls_options",
    "Transaction": "waltzctl.engine.client.log_transaction",
    "VerifyOptions": "waltzctl.engine.inspect.verification",
    "VerifySummary": "waltzctl.engine.inspect.verification",
    "WaltzDataSource": "waltzctl.engine.spark.data_source",
    "WaltzError": "waltzctl.engine.errors",
    "WireRecord": "waltzctl.formats.wire.records",
    "apply_feed": "waltzctl.engine.client.sql_applier",
    "client_context": "waltzctl.engine.net.tls",
    "dump_records": "waltzctl.engine.inspect.dump_records",
    "open_log_client": "waltzctl.engine.client.open_log",
    "open_storage": "waltzctl.engine.storage.directory",
    "spark_session": "waltzctl.engine.spark.start",
    "storage_status": "waltzctl.engine.inspect.status",
    "verify": "waltzctl.engine.inspect.verify",
    "write_archive": "waltzctl.engine.spark.shipping",
}
"""The module that defines each public name."""

__all__ = [
    "AdminClient",
    "ClientOptions",
    "Code",
    "DeadlineError",
    "Draft",
    "DumpedRecord",
    "Finding",
    "InvalidRequestError",
    "LogClient",
    "Partition",
    "PeerUnreachableError",
    "Record",
    "RequestId",
    "Severity",
    "SqlDatabase",
    "SqlTransaction",
    "StorageClient",
    "StorageDirectory",
    "StorageOptions",
    "StorageStatus",
    "TlsOptions",
    "Transaction",
    "VerifyOptions",
    "VerifySummary",
    "WaltzDataSource",
    "WaltzError",
    "WireRecord",
    "apply_feed",
    "client_context",
    "dump_records",
    "open_log_client",
    "open_storage",
    "spark_session",
    "storage_status",
    "verify",
    "write_archive",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use, so that a command loads only what it needs."""
    if name not in _MODULES:
        raise AttributeError(f"module 'waltzctl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
