"""Key stores, case by case: what is read from which bytes, and word for word why nothing is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from tests.net.certificates import PASSWORD, Authority
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net import keystore
from waltzctl.engine.net.keystore import read_certificate_and_key, read_key_store, read_trust_store
from waltzctl.formats.jks import JksKey, encode_store, protect_key

AUTHORITY = Authority()
NODE = AUTHORITY.issue("node", "node.example")
CHAIN = NODE.certificate_pem()
KEY = NODE.key_pem()
OTHER = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
LOCKED = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"other")
)


def why(tmp_path: Path, data: bytes, *, kind: str = "PEM", password: str | None = PASSWORD, trust: bool = False) -> str:
    """Why a store cannot be read, without its path; empty where it can."""
    path = tmp_path / "store"
    path.write_bytes(data)
    try:
        (read_trust_store if trust else read_key_store)(path, password, kind)
    except InvalidRequestError as error:
        return error.message.removeprefix(f"{path}: ")
    return ""


WHOLE = "holds no whole private key in PEM form"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (CHAIN + KEY, ""),
        (KEY + CHAIN, ""),
        (b"words in front\n" + CHAIN + KEY + OTHER, ""),
        (CHAIN, WHOLE),
        (CHAIN + b"PRIVATE KEY-----", WHOLE),
        (b"PRIVATE KEY-----\nPRIVATE KEY-----" + CHAIN, WHOLE),
        (CHAIN + OTHER + KEY, "the private key does not belong to the first certificate"),
        (KEY, "no certificate in PEM form can be read from it"),
        (CHAIN[:-30], "a block of PEM is cut off"),
        (CHAIN + KEY[:-30], "a block of PEM is cut off"),
        (CHAIN + LOCKED, "the private key cannot be read: wrong password, or damaged"),
        (CHAIN + KEY.replace(b"MI", b"AA", 1), "the private key cannot be read: damaged, or of an unknown kind"),
        (b"", "the file is empty"),
        (b"words", "not PEM"),
    ],
    ids=map(str, itertools.count()),  # keys are made at each start
)
def test_pem(tmp_path: Path, data: bytes, message: str) -> None:
    assert why(tmp_path, data) == message


@pytest.mark.parametrize("cut", [0, 1, 8])
def test_a_chain_that_is_cut_off_is_told_wherever_its_key_is(tmp_path: Path, cut: int) -> None:
    """What is left of it would be a chain that nobody can follow."""
    chain, key = tmp_path / "chain", tmp_path / "key"
    key.write_bytes(KEY)
    chain.write_bytes(CHAIN[: CHAIN.rindex(b"-----END") + cut])
    with pytest.raises(InvalidRequestError, match="a block of PEM is cut off"):
        read_certificate_and_key(chain, key, None)


def test_a_trust_store_that_is_cut_off_anywhere_is_no_shorter_one(tmp_path: Path) -> None:
    """Also within the lines that begin and end a certificate: whom the last one vouches for would be shut out by a reload."""
    one, two = CHAIN, Authority().issue("other", "other.example").certificate_pem()
    whole = one + two
    for cut in range(whole.rindex(b"-----BEGIN") + 1, len(whole.rstrip())):
        assert why(tmp_path, whole[:cut], trust=True) == "a block of PEM is cut off", cut
    for data in (one, one.rstrip(), whole.rstrip(), one + b"-----\n", whole + b"words\n"):
        assert why(tmp_path, data, trust=True) == ""


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), UnsupportedAlgorithm("x")])
def test_a_key_that_the_library_does_not_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(serialization, "load_pem_private_key", fails)
    assert why(tmp_path, CHAIN + KEY) == "the private key cannot be read: damaged, or of an unknown kind"


@pytest.mark.parametrize("trust", [False, True], ids=["key store", "trust store"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnsupportedAlgorithm("curve 1.2.3"), "a key or cipher of an unknown kind: curve 1.2.3"),
        (ValueError("Could not deserialize PKCS12 data"), "a damaged or unknown PKCS12 store"),
    ],
)
def test_a_pkcs12_store_that_the_library_does_not_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, trust: bool
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(pkcs12, "load_pkcs12", fails)
    assert why(tmp_path, b"\x30", kind="PKCS12", trust=trust) == message


@pytest.mark.parametrize("error", [ValueError("curve 1.2.3"), UnsupportedAlgorithm("curve 1.2.3")])
def test_a_certificate_whose_key_the_library_does_not_take_is_told(tmp_path: Path, error: Exception) -> None:
    def fails() -> None:
        raise error

    certificate: Any = SimpleNamespace(public_key=fails)
    with pytest.raises(InvalidRequestError, match=r"key of the first certificate cannot be read: curve 1\.2\.3"):
        keystore._checked(tmp_path, keystore.KeyMaterial(NODE.key, (certificate,)))


def test_a_key_without_a_certificate_is_told(tmp_path: Path) -> None:
    plain = NODE.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    store = encode_store([JksKey("node", 0, protect_key(plain, PASSWORD), ())], PASSWORD)
    assert why(tmp_path, store, kind="JKS") == "the private key has no certificate"


def test_of_a_store_s_certificates_only_those_above_the_own_one_are_shown(tmp_path: Path) -> None:
    stranger = Authority("somebody else")
    store = tmp_path / "store"
    store.write_bytes(
        serialize_key_and_certificates(
            b"node", NODE.key, NODE.certificate, [stranger.certificate, AUTHORITY.certificate],
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )  # fmt: skip
    assert read_key_store(store, PASSWORD, "PKCS12").chain == NODE.chain


def test_an_encrypted_key_needs_a_password(tmp_path: Path) -> None:
    message = "the private key is encrypted and no password is given"
    assert why(tmp_path, CHAIN + LOCKED, password=None) == message
    assert why(tmp_path, CHAIN + KEY, password=None) == ""
    assert why(tmp_path, CHAIN + KEY, password="") == ""


def test_certificate_and_key_may_stand_in_one_file_or_in_two(tmp_path: Path) -> None:
    chain, key, both = (tmp_path / name for name in ("chain", "key", "both"))
    chain.write_bytes(CHAIN)
    key.write_bytes(KEY)
    both.write_bytes(CHAIN + KEY)
    assert read_certificate_and_key(both, None, None).chain == read_certificate_and_key(chain, key, None).chain
    for first, second, path, message in (
        (chain, None, chain, WHOLE),
        (key, None, key, "no certificate in PEM form can be read from it"),
        (chain, chain, chain, WHOLE),
        (key, key, key, "no certificate in PEM form can be read from it"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            read_certificate_and_key(first, second, None)
        assert caught.value.message == f"{path}: {message}"


JKS, P12 = bytes.fromhex("feedfeed"), b"\x30\x82"


@pytest.mark.parametrize(
    ("data", "kind", "message", "advice"),
    [
        (CHAIN, "JKS", "PEM, not JKS", "set the store's type to PEM"),
        (CHAIN, "PKCS12", "PEM, not PKCS12", "set the store's type to PEM"),
        (b"\x31words", "JKS", "neither JKS nor PKCS12; it begins with 31776f72", None),
        (b"words", "PEM", "not PEM", "name the store's type, JKS or PKCS12"),
        (P12, "JKS", "a damaged or unknown PKCS12 store", None),
        (P12, "PKCS12", "a damaged or unknown PKCS12 store", None),
    ],
    ids=map(str, itertools.count()),
)
def test_a_store_is_what_its_first_bytes_say(
    tmp_path: Path, data: bytes, kind: str, message: str, advice: str | None
) -> None:
    for trust in (False, True):
        path = tmp_path / "store"
        path.write_bytes(data)
        with pytest.raises(InvalidRequestError) as caught:
            (read_trust_store if trust else read_key_store)(path, PASSWORD, kind)
        assert caught.value.message == f"{path}: {message}"
        assert caught.value.advice == advice or advice is None


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_passwords_of_stores(tmp_path: Path, kind: str) -> None:
    data = NODE.write(tmp_path, kind).read_bytes()
    assert why(tmp_path, data, kind=kind) == ""
    assert why(tmp_path, data, kind=kind, password=None) == "a private key cannot be read without the store's password"
    assert "password" in why(tmp_path, data, kind=kind, password="wrong")
    assert "password" in why(tmp_path, data, kind=kind, password="wrong", trust=True)
    assert why(tmp_path, AUTHORITY.write(tmp_path, kind).read_bytes(), kind=kind) == (
        "the key store holds no private key with its certificate"
    )


def test_a_store_with_a_key_alone_is_none(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    data = serialize_key_and_certificates(b"x", key, None, None, NoEncryption())
    assert why(tmp_path, data, kind="PKCS12", password="") == "the key store holds no private key with its certificate"


@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "PEM"])
def test_a_store_of_a_node_vouches_for_its_own_certificate(tmp_path: Path, kind: str) -> None:
    """Not for who issued it, as in Java; PEM has no key with a chain of its own."""
    path = NODE.write(tmp_path, kind)
    found = read_trust_store(path, PASSWORD, kind)
    own = NODE.chain[0].public_bytes(Encoding.DER)
    assert found[0] == own
    assert len(found) == (len(NODE.chain) if kind == "PEM" else 1)


def test_who_issued_a_key_s_certificate_is_trusted_where_the_store_has_it_as_an_entry_too(tmp_path: Path) -> None:
    """Java's keytool writes it twice then: in the key's chain, and by itself."""
    path = tmp_path / "both.p12"
    path.write_bytes(replace(NODE, above=NODE.above * 2).pkcs12())
    found = read_trust_store(path, PASSWORD, "PKCS12")
    assert found == tuple(one.public_bytes(Encoding.DER) for one in NODE.chain)


@pytest.mark.parametrize("entries", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("in_front", [False, True])
def test_who_issued_the_certificates_of_several_keys_is_trusted_where_there_is_an_entry(
    tmp_path: Path, entries: tuple[int, ...], in_front: bool
) -> None:
    """As Java writes the store: above a key's own certificate each has its subject for a name, an entry its alias.

    Everybody with a certificate of the second key's authority could connect.
    """
    authorities = AUTHORITY, Authority()
    first, second = (one.issue(f"node{number}", "node.example") for number, one in enumerate(authorities))
    named = [
        *(pkcs12.PKCS12Certificate(one, one.subject.rfc4514_string().encode()) for one in first.above),
        pkcs12.PKCS12Certificate(second.certificate, b"key2"),
        *(pkcs12.PKCS12Certificate(one, one.subject.rfc4514_string().encode()) for one in second.above),
    ]
    trusted = [pkcs12.PKCS12Certificate((first, second)[one].above[-1], b"entry%d" % one) for one in entries]
    others = [*trusted, *named] if in_front else [*named, *trusted]
    path = tmp_path / "several.p12"
    locked = BestAvailableEncryption(PASSWORD.encode())
    path.write_bytes(serialize_key_and_certificates(b"key1", first.key, first.certificate, others, locked))
    expected = {one.public_bytes(Encoding.DER) for one in (first.certificate, second.certificate)}
    expected |= {one.certificate.public_bytes(Encoding.DER) for one in trusted}
    found = read_trust_store(path, PASSWORD, "PKCS12")
    assert ({*found}, len(found)) == (expected, len(expected))
    assert read_key_store(path, PASSWORD, "PKCS12").chain[0] == first.certificate
