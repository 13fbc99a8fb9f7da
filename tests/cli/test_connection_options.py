"""The options of a connection are those that TLS declares, and each of them reaches the engine."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import typer

from waltzctl.connection_options import Connecting
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.tls_options import client_names
from waltzctl.engine.spark.stream_node import KNOWN


def test_clients_take_what_tls_declares_by_the_same_names() -> None:
    others = {"plaintext", "insecure", "timeout"}
    assert {one.name.replace("_", "-") for one in fields(Connecting)} == {*client_names(), *others}
    assert {name.lower() for name in KNOWN} == {name.replace("-", "") for name in (*client_names(), *others)}


def test_every_option_reaches_the_engine(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("sesame\nnot this\n")
    own = Connecting(certificate="/c", certificate_key="/k", certificate_key_password_file=str(password)).reach()._tls
    assert (own.certificate, own.key, own.key_password) == (Path("/c"), Path("/k"), "sesame")
    stores = Connecting(
        key_store="/s", key_store_type="pkcs12", key_store_password_file=str(password),
        trust_store="/t", trust_store_type="PEM", trust_store_password_file=str(password),
    ).reach()._tls  # fmt: skip
    assert (stores.key_store, stores.key_store_type, stores.key_store_password) == (Path("/s"), "pkcs12", "sesame")
    assert (stores.trust_store, stores.trust_store_type) == (Path("/t"), "PEM")
    assert stores.trust_store_password == "sesame"


@pytest.mark.parametrize(
    ("connecting", "message"),
    [
        (
            Connecting(certificate_key_password_file="/nowhere"),
            "--certificate-key-password-file: /nowhere: cannot read",
        ),
        (Connecting(key_store_type="zip"), "--key-store-type: 'zip': no such type of store"),
        (Connecting(certificate="/c", key_store="/s"), "are both given (--certificate; --key-store)"),
        (Connecting(certificate_key="/k"), "without its certificate (--certificate-key)"),
    ],
)
def test_errors_name_the_option_as_it_was_typed(connecting: Connecting, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        connecting.reach()
    assert message in str(caught.value.message)


@pytest.mark.parametrize(
    "connecting",
    [Connecting(trust_store=""), Connecting(key_store="waltz://h:1"), Connecting(plaintext=True, certificate="/c")],
)
def test_what_cannot_be_meant_is_a_usage_error(connecting: Connecting) -> None:
    with pytest.raises(typer.BadParameter):
        connecting.reach()


def test_the_options_given_can_be_typed_again() -> None:
    given = Connecting(plaintext=True, insecure=True, timeout="3s", trust_store="it's one")
    assert given.arguments == ("--plaintext", "--insecure", "--trust-store", "it's one", "--timeout", "3s")
    assert Connecting().arguments == ()
