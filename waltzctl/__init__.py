"""Waltz storage from the command line and from Python: what programs import stands here, by name, and is loaded when it is used.

``from waltzctl import StorageClient, open_storage``: see docs/python.md.  Everything else below this package may change
between versions.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltzctl.engine.client.admin_client import AdminClient
    from waltzctl.engine.client.storage_client import StorageClient
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.findings import Code, Finding, Severity
    from waltzctl.engine.inspect.dump_records import DumpedRecord, dump_records
    from waltzctl.engine.inspect.outcome import VerifyOptions, VerifySummary
    from waltzctl.engine.inspect.status import StorageStatus, storage_status
    from waltzctl.engine.inspect.verify import verify
    from waltzctl.engine.spark.shipping import write_archive
    from waltzctl.engine.spark.source import WaltzDataSource
    from waltzctl.engine.storage.directory import StorageDirectory, open_storage
    from waltzctl.engine.storage.options import StorageOptions
    from waltzctl.engine.storage.partition import Partition
    from waltzctl.engine.tls import TlsOptions, client_context
    from waltzctl.formats.request_id import RequestId
    from waltzctl.formats.segment import Record
    from waltzctl.formats.wire.records import WireRecord

__version__ = "0.1.0"

_MODULES = {
    "AdminClient": "engine.client.admin_client",
    "Code": "engine.findings",
    "DumpedRecord": "engine.inspect.dump_records",
    "Finding": "engine.findings",
    "Partition": "engine.storage.partition",
    "Record": "formats.segment",
    "RequestId": "formats.request_id",
    "Severity": "engine.findings",
    "StorageClient": "engine.client.storage_client",
    "StorageDirectory": "engine.storage.directory",
    "StorageOptions": "engine.storage.options",
    "StorageStatus": "engine.inspect.status",
    "TlsOptions": "engine.tls",
    "VerifyOptions": "engine.inspect.outcome",
    "VerifySummary": "engine.inspect.outcome",
    "WaltzDataSource": "engine.spark.source",
    "WaltzError": "engine.errors",
    "WireRecord": "formats.wire.records",
    "client_context": "engine.tls",
    "dump_records": "engine.inspect.dump_records",
    "open_storage": "engine.storage.directory",
    "storage_status": "engine.inspect.status",
    "verify": "engine.inspect.verify",
    "write_archive": "engine.spark.shipping",
}
"""Where each public name is made."""

__all__ = [
    "AdminClient",
    "Code",
    "DumpedRecord",
    "Finding",
    "Partition",
    "Record",
    "RequestId",
    "Severity",
    "StorageClient",
    "StorageDirectory",
    "StorageOptions",
    "StorageStatus",
    "TlsOptions",
    "VerifyOptions",
    "VerifySummary",
    "WaltzDataSource",
    "WaltzError",
    "WireRecord",
    "client_context",
    "dump_records",
    "open_storage",
    "storage_status",
    "verify",
    "write_archive",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use: the command line must not pay for what a command does not need."""
    if name not in _MODULES:
        raise AttributeError(f"module 'waltzctl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"waltzctl.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
