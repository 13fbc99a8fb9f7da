"""Whom a tool believes: nobody beyond this machine, unless it was told whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.net.certificates import PASSWORD, Authority
from tests.node.running import run, running
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.errors import PeerUnreachableError, RefusedError
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.net.tls_options import TlsOptions

FAR = Address("192.0.2.1", 55281)
HERE = Address("127.0.0.1", 55281)


def test_plain_text_stays_on_the_loopback() -> None:
    assert ConnectionFactory(plaintext=True).context(HERE) is None
    with pytest.raises(RefusedError, match="loopback"):
        ConnectionFactory(plaintext=True).context(FAR)
    assert ConnectionFactory(plaintext=True, insecure=True).context(FAR) is None


def test_any_certificate_is_believed_on_the_loopback_only_and_said_once() -> None:
    notes: list[str] = []
    reach = ConnectionFactory(on_note=notes.append)
    here, far = reach.context(HERE), reach.context(FAR)
    assert here is not None
    assert far is not None
    assert (here.verify_mode.name, here.check_hostname) == ("CERT_NONE", False)
    assert (far.verify_mode.name, far.check_hostname) == ("CERT_REQUIRED", True)
    reach.context(HERE)
    assert len(notes) == 1
    assert "127.0.0.1" in notes[0]
    careless = ConnectionFactory(insecure=True, on_note=notes.append).context(FAR)
    assert careless is not None
    assert careless.verify_mode.name == "CERT_NONE"
    assert "192.0.2.1" in notes[-1]


def test_a_trust_store_decides_also_on_the_loopback_and_names_are_checked(tmp_path: Path) -> None:
    """--insecure leaves the name out, never the certificate."""
    build_directory(tmp_path / "storage", {0: 3})
    ours, other = Authority("ours"), Authority("other")
    leaf = ours.issue("node", "localhost")
    store = leaf.write(tmp_path, "PKCS12")
    trusted = TlsOptions(trust_store=ours.write(tmp_path, "PKCS12"), trust_store_password=PASSWORD)
    stranger = TlsOptions(trust_store=other.write(tmp_path, "JKS"), trust_store_password=PASSWORD)

    async def work() -> None:
        own = TlsOptions(key_store=store, key_store_password=PASSWORD)
        async with running(tmp_path / "storage", plaintext=False, tls=own) as node:
            address = Address("127.0.0.1", node.addresses.admin_port)
            named = Address("localhost", node.addresses.admin_port)
            for reach, where in (
                (ConnectionFactory(trusted), named),
                (ConnectionFactory(trusted, insecure=True), address),
            ):
                async with await reach.admin(where) as client:
                    assert await client.assigned_status() == ((0, True),)
            for reach, where in (
                (ConnectionFactory(trusted), address),
                (ConnectionFactory(stranger), named),
                (ConnectionFactory(stranger, insecure=True), named),
            ):
                with pytest.raises(PeerUnreachableError, match="not accepted"):
                    await reach.admin(where)

    run(work())
