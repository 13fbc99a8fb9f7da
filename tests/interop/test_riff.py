"""Our node behind the release's networking library: its framing, its greeting, its primitive types, its TLS.

The program on the other side is ours and knows the layouts of the messages by itself; how they become bytes is the library's
affair.  What it prints is compared as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from pathlib import Path

import pytest

from tests.builders import KEY
from tests.interop.riff import PATIENCE, RiffProgram, Stores, built, needs_maven
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import NodeOptions
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.formats.control import Layout

LOG = logging.getLogger("waltzctl.test")
PARTITIONS = 4
EXCEPTION = "com.wepay.waltz.storage.exception.StorageException"


def code(text: str) -> str:
    """The stack of a failure of ours, as the program prints it."""
    return f"waltzctl.{text}(null:-1)"


def record(number: int, length: int) -> str:
    return f"{header(number)}/{length}/sound"


def header(number: int) -> str:
    return f"{number}/700000001/{number:x}/{-number}"


EXPECTED = [
    "admin open: 1 [-1]",
    (
        f"admin open, other key: 2 [-1, [{EXCEPTION}: Provided cluster key is inconsistent with key in control file.,"
        f" {code('mismatch')}]]"
    ),
    "nothing assigned: 14 [0, []]",
    "assign: 1 [1]",
    "switch off: 1 [2]",
    "assigned: 14 [3, [0, true, 1, false]]",
    "session: 10 [4, 0, -1, -1, -1]",
    f"session of another: 2 [5, [java.lang.Exception: Partition:3 is not assigned., {code('not-assigned')}]]",
    "metrics: true",
    "open: 7 [-1, -1, -1]",
    "last session: 3 [42, 0, 0, -1, -1, -1]",
    "mark: 7 [42, 1, 0]",
    "append: 7 [42, 2, 0]",
    "append nothing: 7 [42, 3, 0]",
    f"append a gap: 8 [42, 4, 0, [{EXCEPTION}: transaction out of order, {code('out-of-order')}]]",
    (
        f"append wrongly summed: 8 [42, 5, 0, [{EXCEPTION}: transaction 3: the data does not agree with the checksum that came"
        f" with it; nothing of the request was written, {code('data-checksum')}]]"
    ),
    f"record: 12 [42, 6, 0, {record(2, 300)}]",
    "no record: 12 [42, 7, 0, absent]",
    f"header: 10 [42, 8, 0, {header(1)}]",
    "no header: 10 [42, 9, 0, absent]",
    f"headers: 16 [42, 10, 0, [{header(0)}, {header(1)}]]",
    f"records: 18 [42, 11, 0, [{record(1, 3)}, {record(2, 300)}]]",
    "last: 14 [42, 12, 0, 2]",
    (
        f"switched off: 8 [42, 13, 1, [{EXCEPTION}: read and write for partition=1 have been disabled on storage node,"
        f" {code('not-available')}]]"
    ),
    f"not assigned: 8 [42, 14, 3, [java.lang.Exception: Partition:3 is not assigned., {code('not-assigned')}]]",
    "truncate: 14 [42, 15, 0, 0]",
    "appended many: 200",
    "append much: 7",
    "read much: 2000",
    "after a keep-alive: 14 [42, 219, 0, 2200]",
    "assigned, version 1: 14 [100, [0, true, 1, false]]",
    "reads on: 1 [101]",
    "reads are on: 14 [102, [0, true, 1, false]]",
    "writes on: 1 [103]",
    "both are on: 14 [104, [0, true, 1, true]]",
    f"records, version 1: 8 [105, 0, [{record(0, 0)}, {record(1, 1)}]]",
    "version 7: ended",
    "the other port: ended",
    "end: ",
]


@pytest.fixture(scope="module")
def program() -> RiffProgram:
    return built()


async def _speak(program: RiffProgram, directory: Path, tls: TlsOptions, stores: Stores | None) -> tuple[int, str, str]:
    """Status, output and error output of the program."""
    node = await Node.start(NodeOptions(directory=directory, port=0, http_port=None, tls=tls), log=LOG)
    try:
        at = node.addresses
        arguments = [at.host, at.port, at.admin_port, KEY, PARTITIONS]
        if stores is not None:
            arguments += [stores.keys, stores.trust, stores.kind, stores.password]
        process = await asyncio.create_subprocess_exec(
            *program.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()
    finally:
        await node.stop(1.0)


@needs_maven
@pytest.mark.turns(10)
@pytest.mark.parametrize("kind", [None, "JKS", "PKCS12"], ids=["self-signed", "JKS", "PKCS12"])
def test_the_library_of_the_release_speaks_with_our_node_over_tls(
    kind: str | None, program: RiffProgram, tmp_path: Path
) -> None:
    """Self-signed certificates on both sides, or stores of Java's on both: then the node wants a certificate too."""
    stores = Stores.make(tmp_path, kind) if kind is not None else None
    tls = TlsOptions()
    if stores is not None:
        tls = TlsOptions(
            key_store=stores.keys,
            key_store_password=stores.password,
            key_store_type=stores.kind,
            trust_store=stores.trust,
            trust_store_password=stores.password,
            trust_store_type=stores.kind,
        )
    directory = tmp_path / "storage"
    create_cluster([directory], num_partitions=PARTITIONS, cluster_key=KEY, layout=Layout.RELEASED, assign=())
    status, out, err = asyncio.run(_speak(program, directory, tls, stores))
    assert out.splitlines() == EXPECTED, err
    assert status == 0, err
