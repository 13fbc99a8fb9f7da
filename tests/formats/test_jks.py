"""Key stores of type JKS: what this project writes is what it reads, and what Java's own tool writes and reads."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import few, properties
from tests.net.certificates import Authority
from waltzctl.formats.jks import (
    JCEKS_MAGIC,
    JKS_MAGIC,
    PRIVATE_KEY,
    SUN_KEY_PROTECTION,
    TRUSTED_CERTIFICATE,
    JksCertificate,
    JksEntry,
    JksError,
    JksKey,
    JksPasswordError,
    JksStore,
    _der,
    _take,
    encode_store,
    protect_key,
    seal,
    unprotect_key,
)

PASSWORD = "changeit"
KEYTOOL = shutil.which("keytool")
needs_java = pytest.mark.skipif(KEYTOOL is None, reason="keytool of a Java installation is not here")

aliases = st.text(max_size=20)
passwords = st.text(max_size=20)
stamps = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(max_size=60)
certificates = st.builds(JksCertificate, aliases, stamps, blobs)
keys = st.builds(JksKey, aliases, stamps, blobs, st.lists(blobs, max_size=3).map(tuple))
stores: st.SearchStrategy[list[JksEntry]] = st.lists(st.one_of(certificates, keys), max_size=4)


@few
@given(stores, passwords, st.sampled_from([1, 2]))
def test_a_store_comes_back_whole(entries: list[JksEntry], password: str, version: int) -> None:
    store = JksStore.decode(encode_store(entries, password, version=version))
    assert (store.version, list(store.entries)) == (version, entries)
    store.check_password(password)
    with pytest.raises(JksPasswordError):
        store.check_password(password + "x")


def test_the_first_version_says_no_type_of_a_certificate() -> None:
    entries = [JksKey("k", 7, b"protected", (b"one", b"two")), JksCertificate("c", 8, b"three")]
    raw = encode_store(entries, "pw", version=1)
    assert b"X.509" not in raw
    assert JksStore.decode(raw).entries == tuple(entries)


@properties
@given(st.binary(max_size=300), passwords)
def test_a_key_comes_back_only_with_its_password(key: bytes, password: str) -> None:
    protected = protect_key(key, password)
    assert unprotect_key(protected, password) == key
    with pytest.raises(JksPasswordError):
        unprotect_key(protected, password + "x")


def test_the_layout_byte_by_byte() -> None:
    """Magic, version, count, kind, alias, time, type, length, certificate, seal: as the platform's documents have them."""
    body = bytes.fromhex("feedfeed 00000002 0000000100000002 0001 61 0000000000000005 0005 582e353039 00000003 010203")
    whole = encode_store([JksCertificate("a", 5, b"\x01\x02\x03")], "pw")
    assert whole[:-20] == body
    assert whole[-20:] == hashlib.sha1(b"\0p\0wMighty Aphrodite" + body).digest() == seal(body, "pw")
    first = encode_store([JksCertificate("a", 5, b"\x01\x02\x03")], "pw", version=1)
    assert first[:-20] == body.replace(b"\0\0\0\x02\0\0\0\x01\0\0\0\x02", b"\0\0\0\x01\0\0\0\x01\0\0\0\x02").replace(
        b"\x00\x05X.509", b""
    )


def test_every_store_that_ends_early_is_refused() -> None:
    whole = encode_store([JksCertificate("a", 5, b"xyz"), JksKey("k", 6, b"key", (b"c1", b"c2"))], PASSWORD)
    for size in range(len(whole)):
        with pytest.raises(JksError):
            JksStore.decode(whole[:size])
    with pytest.raises(JksError, match="1 bytes too many"):
        JksStore.decode(whole + b"\0")


@properties
@given(st.data())
def test_a_flipped_bit_never_goes_unseen(data: st.DataObject) -> None:
    whole = bytearray(encode_store([JksCertificate("a", 5, b"xyz"), JksKey("k", 6, b"key", (b"c",))], PASSWORD))
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[place // 8] ^= 1 << place % 8
    with pytest.raises((JksError, JksPasswordError)):
        JksStore.decode(bytes(whole)).check_password(PASSWORD)


@properties
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_an_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(JksError):
        JksStore.decode(data)
    with pytest.raises(JksError):
        JksStore.decode(bytes.fromhex("feedfeed00000002") + data + b"\0")
    with pytest.raises((JksError, JksPasswordError)):
        unprotect_key(data, PASSWORD)


def test_a_count_beyond_all_memory_costs_nothing() -> None:
    with pytest.raises(JksError):
        JksStore.decode(bytes.fromhex("feedfeed 00000002 ffffffff"))


def test_another_type_of_certificate_is_named() -> None:
    whole = encode_store([JksCertificate("a", 5, b"xyz")], PASSWORD)
    sealed = whole[:-20].replace(b"X.509", b"X.510")
    with pytest.raises(JksError, match=r"X\.510"):
        JksStore.decode(sealed + seal(sealed, PASSWORD))


def test_another_protection_is_named() -> None:
    protected = protect_key(b"key", PASSWORD).replace(bytes.fromhex("2a02110101"), bytes.fromhex("2a02110102"))
    with pytest.raises(JksError, match="another algorithm"):
        unprotect_key(protected, PASSWORD)


def keytool(*arguments: object) -> None:
    assert KEYTOOL is not None
    subprocess.run(
        [KEYTOOL, *map(str, arguments)], check=True, capture_output=True, timeout=120, env={"LANG": "C", "PATH": "/bin"}
    )


@pytest.mark.turns(10)
@needs_java
@pytest.mark.parametrize("algorithm", ["EC", pytest.param("RSA", marks=pytest.mark.long)])
def test_a_store_that_keytool_wrote_is_read(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "store"
    keytool(
        *("-genkeypair", "-alias", "nödé", "-keyalg", algorithm, "-storetype", "JKS", "-keystore", path),
        *("-storepass", PASSWORD, "-dname", "CN=node"),
    )
    (alone,) = JksStore.decode(path.read_bytes()).entries
    certificate = tmp_path / "certificate"
    certificate.write_bytes(alone.chain[0])  # type: ignore[union-attr]  # a key's
    keytool(
        *("-importcert", "-noprompt", "-alias", "trusted", "-keystore", path, "-storepass", PASSWORD),
        *("-file", certificate, "-storetype", "JKS"),
    )
    store = JksStore.decode(path.read_bytes())
    store.check_password(PASSWORD)
    (key,) = (entry for entry in store.entries if isinstance(entry, JksKey))
    (trusted,) = (entry for entry in store.entries if isinstance(entry, JksCertificate))
    assert trusted.alias == "trusted"
    assert key.chain == (trusted.der,) == (certificate.read_bytes(),)
    assert unprotect_key(key.protected, PASSWORD).startswith(b"\x30")


@pytest.mark.turns(10)
@needs_java
def test_keytool_reads_what_is_written_here(tmp_path: Path) -> None:
    leaf = Authority().issue("node")
    path = tmp_path / "store"
    path.write_bytes(leaf.jks(PASSWORD))
    out = tmp_path / "out"
    keytool(
        *("-importkeystore", "-srckeystore", path, "-srcstoretype", "JKS", "-srcstorepass", PASSWORD),
        *("-destkeystore", out, "-deststoretype", "PKCS12", "-deststorepass", PASSWORD),
    )
    from cryptography.hazmat.primitives.serialization import pkcs12

    key, certificate, _ = pkcs12.load_key_and_certificates(out.read_bytes(), PASSWORD.encode())
    assert certificate == leaf.certificate
    assert key is not None
    assert key.public_key() == leaf.key.public_key()  # type: ignore[union-attr]  # an elliptic curve key


def stream(salt: bytes, password: str, size: int) -> bytes:
    """What a key is combined with, by the description alone: each block of SHA-1 begins the next."""
    secret, block, found = password.encode("utf-16-be"), salt, b""
    while len(found) < size:
        block = hashlib.sha1(secret + block).digest()
        found += block
    return found[:size]


@pytest.mark.parametrize("size", [0, 1, 19, 20, 21, 40, 41])
def test_a_protected_key_byte_by_byte(size: int) -> None:
    key, salt = bytes(range(1, size + 1)), bytes(range(20))
    protected = protect_key(key, "pw", salt=salt)
    hidden = bytes(a ^ b for a, b in zip(key, stream(salt, "pw", size), strict=True))
    held = salt + hidden + hashlib.sha1(b"\0p\0w" + key).digest()
    algorithm = bytes.fromhex("300e 060a 2b060104012a02110101 0500")
    assert (
        protected == b"\x30" + bytes([len(algorithm) + 2 + len(held)]) + algorithm + b"\x04" + bytes([len(held)]) + held
    )
    assert unprotect_key(protected, "pw") == key


@pytest.mark.parametrize(
    ("size", "length"),
    [
        (0, "00"),
        (1, "01"),
        (0x7F, "7f"),
        (0x80, "8180"),
        (0xFF, "81ff"),
        (0x100, "820100"),
        (0xFFFF, "82ffff"),
        (0x10000, "83010000"),
    ],
)
def test_lengths_in_a_wrapping(size: int, length: str) -> None:
    """In as few bytes as they need; and read back from there."""
    value = _der(0x04, bytes(size))
    assert value == b"\x04" + bytes.fromhex(length) + bytes(size)
    assert _take(value + b"more") == (0x04, bytes(size), b"more")
    for end in (0, 1, 1 + len(length) // 2 - 1, len(value) - 1):
        if end < len(value):
            with pytest.raises(JksError, match=r"^a private key ends within its wrapping$"):
                _take(value[:end])


def test_lengths_of_no_bytes_and_of_more_than_four_cannot_be() -> None:
    for length in ("80", "850000000001", "ff"):
        with pytest.raises(JksError, match=r"^a private key's wrapping has a length that cannot be$"):
            _take(b"\x04" + bytes.fromhex(length) + bytes(200))
    assert _take(bytes.fromhex("04 8400000001 07 08")) == (0x04, b"\x07", b"\x08")


def wrapped(
    *, outer: int = 0x30, algorithm: int = 0x30, oid: int = 0x06, data: int = 0x04, after: bytes = b"", end: bytes = b""
) -> bytes:
    """A protected key with another tag in one place, or bytes behind one of its ends."""
    inner = _der(algorithm, _der(oid, SUN_KEY_PROTECTION) + b"\x05\0") + _der(data, bytes(60)) + after
    return _der(outer, inner) + end


@pytest.mark.parametrize(
    "protected",
    [
        wrapped(outer=0x31),
        wrapped(algorithm=0x31),
        wrapped(oid=0x07),
        wrapped(data=0x05),
        wrapped(after=b"\x05\0"),
        wrapped(end=b"\0"),
    ],
)
def test_another_wrapping_is_refused(protected: bytes) -> None:
    with pytest.raises(JksError, match=r"^a private key is not wrapped as an EncryptedPrivateKeyInfo$"):
        unprotect_key(protected, "pw")
    with pytest.raises(JksPasswordError, match=r"^the password of the private key is wrong, or the key was changed"):
        unprotect_key(wrapped(), "pw")


@pytest.mark.parametrize("held", [0, 39, 40])
def test_a_protected_key_has_room_for_salt_and_check(held: int) -> None:
    protected = _der(0x30, _der(0x30, _der(0x06, SUN_KEY_PROTECTION)) + _der(0x04, bytes(held)))
    with pytest.raises(
        JksPasswordError if held == 40 else JksError,
        match="password" if held == 40 else f"^a protected key has at least 40 bytes, here are {held}$",
    ):
        unprotect_key(protected, "pw")


def test_why_a_store_is_refused() -> None:
    whole = encode_store([JksCertificate("a", 5, b"xyz")], PASSWORD)
    for data, why in (
        (b"\xce\xce\xce\xce" + whole[4:], rf"^no whole JKS key store, at offset 4 of {len(whole)} bytes: .+"),
        (
            whole[:10],
            r"^no whole JKS .*, at offset 10 of 10 bytes: stream read less than .*, expected 4, found 2$",
        ),
        (whole + b"ab", rf"^2 bytes too many follow the seal at offset {len(whole)}$"),
        (whole.replace(b"\0\x01a\0", b"\0\x01\xff\0"), "^an alias cannot be read: "),
        (whole.replace(b"X.509", b"X.510"), r"^a certificate is of type b'X\.510'; only X\.509 is read$"),
    ):
        with pytest.raises(JksError, match=why):
            JksStore.decode(data)
    with pytest.raises(JksPasswordError, match=r"^the password is wrong, or the store was changed or damaged$"):
        JksStore.decode(whole).check_password("other")
    other = protect_key(b"key", PASSWORD).replace(SUN_KEY_PROTECTION, SUN_KEY_PROTECTION[:-1] + b"\x02")
    with pytest.raises(JksError, match=r"another algorithm \(object identifier 2b060104012a02110102\)$"):
        unprotect_key(other, PASSWORD)


def test_the_numbers_of_the_format() -> None:
    assert (JKS_MAGIC, JCEKS_MAGIC, PRIVATE_KEY, TRUSTED_CERTIFICATE) == (0xFEEDFEED, 0xCECECECE, 1, 2)
    for version in (0, 3):
        whole = bytearray(encode_store([], PASSWORD))
        whole[7] = version
        with pytest.raises(JksError, match="at offset 8 of 32"):
            JksStore.decode(bytes(whole))
    one, two = (protect_key(b"key", PASSWORD) for _ in range(2))
    assert one != two, "the salt is drawn anew"
    assert len(one) == len(two)
