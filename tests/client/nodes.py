"""Clients of a running node of ours."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.node.node import Node
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord


def records(first: int, count: int, *, partition: int = 0, size: int = 20) -> list[WireRecord]:
    return [
        WireRecord.make(number, RequestId(1, 2, partition, number), number % 7, number.to_bytes(8, "big") * (size // 8))
        for number in range(first, first + count)
    ]


@contextlib.asynccontextmanager
async def admin_of(node: Node, context: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[AdminClient]:
    where = node.addresses
    async with await AdminClient.connect(where.host, where.admin_port, ssl_context=context, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def data_of(node: Node, context: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[StorageClient]:
    where = node.addresses
    async with await StorageClient.connect(where.host, where.port, ssl_context=context, **options) as client:
        yield client
