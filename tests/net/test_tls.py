"""TLS: which certificate a node shows, whom it trusts, and what its clients check, over real connections."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.net.certificates import DER, PASSWORD, Authority, Leaf, self_made
from waltzctl.engine.errors import DiskReadError, InvalidRequestError
from waltzctl.engine.net import keystore, tls
from waltzctl.engine.net.keystore import _ordered_chain, read_key_store, read_trust_store
from waltzctl.engine.net.tls import client_context, load_material, self_signed, server_context
from waltzctl.engine.net.tls_options import StoreType, TlsOptions, client_names, store_type_of

KINDS = ("JKS", "PKCS12", "PEM")
AUTHORITY = Authority()
NODE = AUTHORITY.issue("node", "node.example", "127.0.0.1")
CLIENT = AUTHORITY.issue("client")
STRANGER = Authority("somebody else").issue("stranger")
KEYTOOL = shutil.which("keytool")
needs_java = pytest.mark.skipif(KEYTOOL is None, reason="keytool of a Java installation is not here")


def meet(server: ssl.SSLContext, client: ssl.SSLContext, *, name: str = "node.example") -> tuple[bytes, str]:
    """Shake hands and exchange a byte each way: the certificate that the client saw, and the protocol's version.

    Raises ssl.SSLError, of whichever side refused.
    """
    near, far = socket.socketpair()
    refused: list[BaseException] = []

    def answer() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as wrapped:
                wrapped.sendall(wrapped.recv(1))
        except (ssl.SSLError, OSError) as error:
            refused.append(error)
            far.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        near.settimeout(60)
        with client.wrap_socket(near, server_hostname=name) as wrapped:
            wrapped.sendall(b"x")
            assert wrapped.recv(1) == b"x"
            return wrapped.getpeercert(binary_form=True) or b"", wrapped.version() or ""
    except (ssl.SSLError, OSError, AssertionError) as error:
        near.close()
        thread.join()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise
        raise next((e for e in refused if isinstance(e, ssl.SSLError)), error) from None
    finally:
        thread.join()


def der(leaf: Leaf) -> bytes:
    return leaf.certificate.public_bytes(Encoding.DER)


def node_options(directory: Path, *, kind: str = "PKCS12", trust: bool = False) -> TlsOptions:
    directory.mkdir()
    options = TlsOptions(key_store=NODE.write(directory, kind), key_store_password=PASSWORD, key_store_type=kind)
    if not trust:
        return options
    return TlsOptions(
        key_store=options.key_store,
        key_store_password=PASSWORD,
        key_store_type=kind,
        trust_store=AUTHORITY.write(directory, kind),
        trust_store_password=PASSWORD,
        trust_store_type=kind,
    )


def client_options(directory: Path, leaf: Leaf | None = None, **more: object) -> TlsOptions:
    directory.mkdir()
    own = {} if leaf is None else {"key_store": leaf.write(directory, "JKS"), "key_store_password": PASSWORD}
    trusted = {"trust_store": AUTHORITY.write(directory, "JKS"), "trust_store_password": PASSWORD}
    return TlsOptions(**{**own, **trusted, **more})  # type: ignore[arg-type]  # the names are right, or this fails


# --- a node --------------------------------------------------------------------------------------------------------------


def test_without_anything_configured_a_certificate_is_made_that_any_client_accepts_who_wants_to() -> None:
    seen, version = meet(server_context(TlsOptions()), client_context(TlsOptions(), trust_all=True))
    certificate = x509.load_der_x509_certificate(seen)
    assert certificate.issuer == certificate.subject
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert version == "TLSv1.3"


def test_the_certificate_that_a_node_makes_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of this machine and of the loopback, each once; a leaf for both sides, of a day ago and for ten years."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    begun = datetime.now(UTC)
    made = self_signed(("more.example", "10.0.0.7", "localhost", "ünicode", ""))
    [certificate] = made.chain
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [str(one.value) for one in names.value] == [
        "more.example",
        "10.0.0.7",
        "localhost",
        "here",
        "127.0.0.1",
        "::1",
    ]
    assert not names.critical
    leaf = extensions.get_extension_for_class(x509.BasicConstraints)
    assert (leaf.critical, leaf.value.ca, leaf.value.path_length) == (True, False, None)
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert [*usage.value] == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not usage.critical
    assert certificate.subject == certificate.issuer
    assert abs(begun - timedelta(days=1) - certificate.not_valid_before_utc) < timedelta(minutes=5)
    assert abs(begun + timedelta(days=3650) - certificate.not_valid_after_utc) < timedelta(minutes=5)
    assert made.fingerprint == certificate.fingerprint(SHA256()).hex()
    assert made.to_pem("secret").startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    assert made.to_pem("secret").endswith(certificate.public_bytes(Encoding.PEM))


@pytest.mark.parametrize(
    ("options", "more", "found"),
    [
        (TlsOptions(), {}, (ssl.CERT_REQUIRED, True)),
        (TlsOptions(), {"trust_all": True}, (ssl.CERT_NONE, False)),
        (TlsOptions(trust_store=Path("/t")), {}, (ssl.CERT_REQUIRED, True)),
        (TlsOptions(trust_store=Path("/t")), {"trust_all": True}, (ssl.CERT_REQUIRED, True)),
        (TlsOptions(trust_store=Path("/t"), verify_names=False), {}, (ssl.CERT_REQUIRED, False)),
    ],
)
def test_what_a_client_checks(
    monkeypatch: pytest.MonkeyPatch, options: TlsOptions, more: dict[str, bool], found: tuple[ssl.VerifyMode, bool]
) -> None:
    trusted: list[object] = []
    monkeypatch.setattr(tls, "_load_trusted", lambda _, given: trusted.append(given.trust_store))
    monkeypatch.setattr(tls, "_load_own", lambda _, given, *, make_one: trusted.append(make_one))
    context = client_context(options, **more)
    assert (context.verify_mode, context.check_hostname) == found
    assert trusted == [False, *([options.trust_store] if options.trust_store else [])]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert bool(context.get_ca_certs()) == (options.trust_store is None and not more)


def test_no_old_version_and_nothing_that_can_be_abused_is_spoken_whatever_a_system_would_allow() -> None:
    context = SimpleNamespace(minimum_version=ssl.TLSVersion.MINIMUM_SUPPORTED, options=0)
    tls._harden(context)  # type: ignore[arg-type]
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options == ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


@pytest.mark.parametrize("trust", [None, Path("/t")])
def test_what_a_server_checks(monkeypatch: pytest.MonkeyPatch, trust: Path | None) -> None:
    asked: list[object] = []
    monkeypatch.setattr(tls, "_load_trusted", lambda _, given: asked.append(given.trust_store))
    monkeypatch.setattr(tls, "_load_own", lambda _, given, *, make_one: asked.append(make_one))
    context = server_context(TlsOptions(trust_store=trust))
    assert context.verify_mode == (ssl.CERT_NONE if trust is None else ssl.CERT_REQUIRED)
    assert asked == [True, *([trust] if trust else [])]
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_each_start_makes_another_certificate() -> None:
    trusting = client_context(TlsOptions(), trust_all=True)
    assert meet(server_context(TlsOptions()), trusting)[0] != meet(server_context(TlsOptions()), trusting)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_of_a_key_store_is_shown(tmp_path: Path, kind: str) -> None:
    server = server_context(node_options(tmp_path / "node", kind=kind))
    assert meet(server, client_context(TlsOptions(), trust_all=True))[0] == der(NODE)


def test_the_certificate_of_pem_files_is_shown(tmp_path: Path) -> None:
    chain, key, both = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "both.pem"
    chain.write_bytes(NODE.certificate_pem())
    key.write_bytes(NODE.key_pem("secret"))
    both.write_bytes(NODE.certificate_pem() + NODE.key_pem())
    for options in (TlsOptions(certificate=chain, key=key, key_password="secret"), TlsOptions(certificate=both)):
        assert meet(server_context(options), client_context(TlsOptions(), trust_all=True))[0] == der(NODE)


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_trust_store_a_client_must_show_a_certificate_from_it(tmp_path: Path, kind: str) -> None:
    server = server_context(node_options(tmp_path / "node", kind=kind, trust=True))
    meet(server, client_context(client_options(tmp_path / "known", CLIENT)))
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        meet(server, client_context(client_options(tmp_path / "bare")))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        meet(server, client_context(client_options(tmp_path / "stranger", STRANGER)))


@pytest.mark.parametrize("kind", ["JKS", "PEM"])
def test_a_certificate_that_stands_in_the_trust_store_itself_is_trusted(tmp_path: Path, kind: str) -> None:
    """As in the release: no authority needs to be there."""
    alone = self_made()
    store = tmp_path / "store"
    store.write_bytes(alone.jks() if kind == "JKS" else alone.certificate_pem())
    server = server_context(TlsOptions(trust_store=store, trust_store_password=PASSWORD, trust_store_type=kind))
    own = tmp_path / "own.p12"
    own.write_bytes(alone.pkcs12())
    known = TlsOptions(key_store=own, key_store_password=PASSWORD, key_store_type="PKCS12")
    meet(server, client_context(known, trust_all=True))
    with pytest.raises(ssl.SSLError):
        meet(server, client_context(TlsOptions(), trust_all=True))


def test_nothing_older_than_tls_1_2_is_spoken() -> None:
    assert server_context(TlsOptions()).minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context(TlsOptions(), trust_all=True).minimum_version == ssl.TLSVersion.TLSv1_2
    old = client_context(TlsOptions(), trust_all=True)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert meet(server_context(TlsOptions()), old)[1] == "TLSv1.2"


# --- a client ------------------------------------------------------------------------------------------------------------


def test_a_client_with_a_trust_store_checks_the_chain_and_the_name(tmp_path: Path) -> None:
    server = server_context(node_options(tmp_path / "node"))
    checking = client_context(client_options(tmp_path / "client"))
    meet(server, checking)
    meet(server, checking, name="127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'elsewhere\.example'"):
        meet(server, checking, name="elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(server_context(TlsOptions()), checking)


def test_names_are_not_checked_when_that_is_excluded(tmp_path: Path) -> None:
    server = server_context(node_options(tmp_path / "node"))
    lenient = client_context(client_options(tmp_path / "client", verify_names=False))
    meet(server, lenient, name="elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(server_context(TlsOptions()), lenient, name="elsewhere.example")


def test_a_trust_store_is_not_overruled_by_trusting_all(tmp_path: Path) -> None:
    checking = client_context(client_options(tmp_path / "client"), trust_all=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(server_context(TlsOptions()), checking)


def test_without_a_trust_store_an_unknown_certificate_is_refused_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(server_context(node_options(tmp_path / "node")), client_context(TlsOptions()))


# --- the private key -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["in memory", "in a file"])
def key_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where OpenSSL reads the key from: a file in memory, or where the system has none, one on the disk."""
    if request.param == "in a file":
        monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_private_key_never_stands_readable_in_a_file(key_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bytes, int]] = []
    load = ssl.SSLContext.load_cert_chain

    class Watched(ssl.SSLContext):
        def load_cert_chain(self, certfile, keyfile=None, password=None):  # type: ignore[no-untyped-def]
            with open(certfile, "rb") as file:
                seen.append((certfile, file.read(), os.fstat(file.fileno()).st_mode & 0o077))
            load(self, certfile, keyfile, password)

    context = Watched(ssl.PROTOCOL_TLS_SERVER)
    load_material(context, self_signed(), "the certificate")
    meet(context, client_context(TlsOptions(), trust_all=True))
    ((path, contents, others),) = seen
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in contents
    assert b"BEGIN PRIVATE KEY" not in contents
    if path.startswith(str(key_place)):
        assert others == 0
    assert list(key_place.iterdir()) == []
    assert not os.path.exists(path)


def test_no_password_and_no_key_in_what_options_show() -> None:
    options = TlsOptions(key_password="secret1", key_store_password="secret2", trust_store_password="secret3")
    assert "secret" not in repr(options)


# --- what cannot be used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TlsOptions(certificate=Path("a"), key_store=Path("b")), "both given"),
        (TlsOptions(key=Path("a")), "without its certificate"),
        (TlsOptions(key_store_type="BKS"), "'BKS': no such type of store; there are JKS, PKCS12, PEM"),
        (TlsOptions(trust_store_type=""), "no such type"),
        (TlsOptions(certificate=Path("/nowhere/a.pem")), "/nowhere/a.pem: cannot read"),
        (TlsOptions(key_store=Path("/nowhere/a.jks"), key_store_password="x"), "/nowhere/a.jks: cannot read"),
        (TlsOptions(trust_store=Path("/")), "/: cannot read"),
    ],
)
def test_options_that_cannot_be_meant(options: TlsOptions, message: str) -> None:
    for make in (server_context, client_context):
        with pytest.raises(InvalidRequestError, match=message):
            make(options)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_wrong_password_is_told(tmp_path: Path, kind: str) -> None:
    key, trust = NODE.write(tmp_path, kind), AUTHORITY.write(tmp_path, kind)
    for read, path in ((read_key_store, key), (read_trust_store, trust)):
        with pytest.raises(InvalidRequestError, match="password is wrong") as caught:
            read(path, "not the password", kind)
        assert str(path) in str(caught.value)
        assert "not the password" not in str(caught.value)
    with pytest.raises(InvalidRequestError, match="without the store's password"):
        read_key_store(key, None, kind)


def test_the_wrong_password_of_a_pem_key_is_told(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(NODE.certificate_pem())
    key.write_bytes(NODE.key_pem("secret"))
    with pytest.raises(InvalidRequestError, match=r"key\.pem: .*encrypted and no password"):
        server_context(TlsOptions(certificate=chain, key=key))
    with pytest.raises(InvalidRequestError, match=r"key\.pem: .*wrong password"):
        server_context(TlsOptions(certificate=chain, key=key, key_password="other"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_store_is_told(tmp_path: Path, kind: str, share: float) -> None:
    for path, read in (
        (NODE.write(tmp_path, kind), read_key_store),
        (AUTHORITY.write(tmp_path, kind), read_trust_store),
    ):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InvalidRequestError, match=str(path)):
            read(path, PASSWORD, kind)


@pytest.mark.parametrize(
    ("contents", "kind", "message"),
    [
        (b"nonsense", "JKS", "neither JKS nor PKCS12; it begins with 6e6f6e73"),
        (b"nonsense", "PEM", "not PEM"),
        (b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n", "PKCS12", "PEM, not PKCS12"),
        (b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n", "PEM", "no certificate in PEM form"),
        (b"\x30\x82\x01", "PKCS12", "damaged or unknown PKCS12"),
        (b"x" * ((16 << 20) + 1), "PEM", "more than 16777216 bytes; this is no key store"),
    ],
)
def test_what_is_no_store_is_told(tmp_path: Path, contents: bytes, kind: str, message: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(contents)
    with pytest.raises(InvalidRequestError, match=message):
        read_trust_store(path, PASSWORD, kind)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "PEM"])
def test_a_store_that_only_java_reads_is_told_with_the_line_that_converts_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a store"
    path.write_bytes(b"\xce\xce\xce\xce\0\0\0\2")
    with pytest.raises(
        InvalidRequestError, match="of type JCEKS, whose keys are encrypted in a way of Java's own"
    ) as raised:
        read_key_store(path, PASSWORD, kind)
    assert raised.value.advice == (
        f"convert it with: keytool -importkeystore -srckeystore '{path}' -srcstoretype JCEKS"
        f" -destkeystore '{path}.p12' -deststoretype PKCS12; then name {path}.p12, of type PKCS12"
    )


def test_stores_without_what_is_looked_for_are_told(tmp_path: Path) -> None:
    for kind in ("JKS", "PKCS12"):
        with pytest.raises(InvalidRequestError, match="holds no private key"):
            read_key_store(AUTHORITY.write(tmp_path, kind), PASSWORD, kind)
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(NODE.certificate_pem())
    with pytest.raises(InvalidRequestError, match="no whole private key"):
        server_context(TlsOptions(certificate=certificate))


def test_a_trust_store_that_vouches_for_nobody_is_told(tmp_path: Path) -> None:
    """Nobody could connect."""
    store = tmp_path / "store"
    key = ec.generate_private_key(ec.SECP256R1())
    store.write_bytes(serialize_key_and_certificates(b"x", key, None, None, NoEncryption()))
    with pytest.raises(InvalidRequestError) as caught:
        read_trust_store(store, None, "PKCS12")
    assert caught.value.message == f"{store}: the trust store holds no certificate"


def test_without_a_trust_store_the_machine_s_authorities_and_names_are_checked_whatever_else_is_said() -> None:
    """Not to check names is for whoever names the authorities."""
    context = client_context(TlsOptions(verify_names=False))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_everybody_in_a_trust_store_is_trusted_as_he_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    ders = tuple(Authority(name).certificate.public_bytes(DER) for name in ("one", "two", "three"))
    monkeypatch.setattr(keystore, "read_trust_store", lambda *_: ders)
    for context in (
        client_context(TlsOptions(trust_store=Path("/t"))),
        server_context(TlsOptions(trust_store=Path("/t"))),
    ):
        assert {*context.get_ca_certs(binary_form=True)} == {*ders}
        assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN


def test_certificates_that_openssl_does_not_take_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keystore, "read_trust_store", lambda *_: (b"nonsense",))
    with pytest.raises(InvalidRequestError, match=r"^/t: its certificates cannot be used"):
        client_context(TlsOptions(trust_store=Path("/t")))


def test_each_store_is_opened_with_its_own_password_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def read(*arguments: object) -> None:
        asked.append(arguments)
        raise InvalidRequestError("enough")

    options = TlsOptions(
        key_store=Path("/k"), key_store_password="one", key_store_type="PKCS12",
        trust_store=Path("/t"), trust_store_password="two", trust_store_type="PEM",
    )  # fmt: skip
    monkeypatch.setattr(keystore, "read_key_store", read)
    with pytest.raises(InvalidRequestError):
        client_context(options)
    monkeypatch.setattr(keystore, "read_trust_store", read)
    with pytest.raises(InvalidRequestError):
        client_context(replace(options, key_store=None))
    monkeypatch.setattr(keystore, "read_certificate_and_key", read)
    with pytest.raises(InvalidRequestError):
        client_context(
            replace(options, key_store=None, certificate=Path("/c"), key=Path("/k.pem"), key_password="three")
        )
    assert asked == [
        (Path("/k"), "one", "PKCS12"), (Path("/t"), "two", "PEM"), (Path("/c"), Path("/k.pem"), "three"),
    ]  # fmt: skip


def test_clients_take_passwords_from_files_only() -> None:
    names = client_names()
    assert len({*names}) == len(names) == 9
    assert {name for name in names if "password" in name} == {
        "certificate-key-password-file", "key-store-password-file", "trust-store-password-file",
    }  # fmt: skip
    assert {"certificate", "certificate-key", "key-store", "trust-store"} <= {*names}


def test_authorities_that_vouch_for_one_another_are_no_chain_without_end() -> None:
    class Certificate:
        asked = 0

        def __init__(self, subject: str, issuer: str) -> None:
            self.subject, self._issuer = subject, issuer

        @property
        def issuer(self) -> str:
            Certificate.asked += 1
            assert Certificate.asked < 100
            return self._issuer

    own, *others = (Certificate(*pair) for pair in ("ab", "bc", "cb"))
    assert _ordered_chain(own, others) == (own, *others)  # type: ignore[arg-type,comparison-overlap]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        ("own middle root", "own middle root"), ("own root middle", "own middle root"), ("own", "own"), ("own root", "own"),
        ("root own middle", "root"), ("own middle middle root", "own middle root"),
    ],
)  # fmt: skip
def test_a_chain_is_ordered_upwards_and_ends_where_nobody_is_above(names: str, order: str) -> None:
    above = {"own": "middle", "middle": "root", "root": "root"}
    first, *others = (SimpleNamespace(subject=name, issuer=above[name]) for name in names.split())
    assert [one.subject for one in _ordered_chain(first, others)] == order.split()  # type: ignore[arg-type]


def test_a_key_of_another_certificate_is_told(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(NODE.certificate_pem())
    key.write_bytes(CLIENT.key_pem())
    with pytest.raises(InvalidRequestError, match="does not belong"):
        server_context(TlsOptions(certificate=chain, key=key))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_store_that_may_not_be_read_is_an_error_of_the_system(tmp_path: Path) -> None:
    path = NODE.write(tmp_path, "JKS")
    path.chmod(0)
    with pytest.raises(DiskReadError):
        read_key_store(path, PASSWORD, "JKS")


@pytest.mark.parametrize(("text", "kind"), [("jks", "JKS"), ("pkcs12", "PKCS12"), ("PKCS#12", "PKCS12"), ("p12", "PKCS12"),
                                            ("pfx", "PKCS12"), (" pem ", "PEM")])  # fmt: skip
def test_names_of_store_types(text: str, kind: str) -> None:
    assert store_type_of(text) == StoreType(kind)


@pytest.mark.parametrize("said", ["JKS", "PKCS12"])
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_store_is_read_as_what_it_is_whatever_it_is_said_to_be(tmp_path: Path, kind: str, said: str) -> None:
    assert read_key_store(NODE.write(tmp_path, kind), PASSWORD, said).chain == NODE.chain
    assert read_trust_store(AUTHORITY.write(tmp_path, kind), PASSWORD, said) == (
        AUTHORITY.certificate.public_bytes(Encoding.DER),
    )


def test_a_jks_trust_store_can_be_read_without_its_password(tmp_path: Path) -> None:
    assert len(read_trust_store(AUTHORITY.write(tmp_path, "JKS"), None, "JKS")) == 1


@pytest.mark.turns(10)
@needs_java
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("JKS", "EC"), pytest.param("JKS", "RSA", marks=pytest.mark.long), pytest.param("PKCS12", "EC", marks=pytest.mark.long),
        ("PKCS12", "RSA"),
    ],
)  # fmt: skip
def test_stores_that_keytool_made_work_on_both_sides(tmp_path: Path, kind: str, algorithm: str) -> None:
    def keytool(*arguments: object) -> None:
        assert KEYTOOL is not None
        subprocess.run([KEYTOOL, *map(str, arguments)], check=True, capture_output=True, timeout=120)

    key, trust, certificate = tmp_path / "key", tmp_path / "trust", tmp_path / "certificate"
    store = ("-storetype", kind, "-storepass", PASSWORD, "-keystore")
    keytool(
        "-genkeypair", "-alias", "node", "-keyalg", algorithm, "-dname", "CN=node", "-ext", "san=dns:node", *store, key
    )
    keytool("-exportcert", "-alias", "node", "-file", certificate, *store, key)
    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", certificate, *store, trust)
    options = TlsOptions(
        key_store=key, key_store_password=PASSWORD, key_store_type=kind,
        trust_store=trust, trust_store_password=PASSWORD, trust_store_type=kind,
    )  # fmt: skip
    seen, _ = meet(server_context(options), client_context(options), name="node")
    assert seen == certificate.read_bytes()
