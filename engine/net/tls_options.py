"""TLS options of a port or a client: the certificate to show, and the certificates to trust.  See `engine.net.tls`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.errors import InvalidOptionsError, InvalidRequestError
from waltzctl.engine.net.setting_kinds import PATH, TEXT, SettingKind
from waltzctl.engine.net.settings import Option, Settings, check_bounds, setting


class StoreType(enum.StrEnum):
    """The format of a store."""

    JKS = "JKS"
    PKCS12 = "PKCS12"
    PEM = "PEM"


DEFAULT_STORE_TYPE = "JKS"
"""As in the release.  JKS and PKCS12 are recognised by their contents (`engine.net.keystore`)."""


def store_type_of(text: str) -> StoreType:
    """A store type by name, in any case; ``P12`` and ``PFX`` are PKCS12.  Raises InvalidRequestError."""
    name = text.strip().upper().replace("#", "")
    name = {"P12": "PKCS12", "PFX": "PKCS12"}.get(name, name)
    try:
        return StoreType(name)
    except ValueError:
        known = ", ".join(StoreType)
        raise InvalidRequestError(f"{text!r}: no such type of store; there are {known}") from None


def _judge_store_type(text: str) -> None:
    try:
        store_type_of(text)
    except InvalidRequestError as error:
        raise ValueError(error.message) from None


STORE_TYPE = SettingKind("JKS, PKCS12 or PEM", "TYPE", str, rule=_judge_store_type)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The certificate to show and the certificates to trust.

    `certificate`, `key`: PEM files; the key is decrypted with `key_password`.  `key_store`, `trust_store`: files of a
    `StoreType`.  `verify_names`: a client with a trust store also verifies the host name.  The ``repr`` contains no passwords.
    """

    certificate: Path | None = setting(
        "PEM file: certificate, then its chain",
        PATH,
        default=None,
        key="waltzctl.certificate",
        option=Option(),
        replaces=("key_store",),
    )
    key: Path | None = setting(
        "PEM file: private key of the certificate",
        PATH,
        default=None,
        unless="the same file",
        key="waltzctl.key",
        option=Option(also="certificate-key"),
    )
    key_password: str | None = setting(
        "password of the private key",
        TEXT,
        default=None,
        key="waltzctl.keyPassword",
        option=Option(only_file=True, also="certificate-key-password"),
        secret=True,
    )
    key_store: Path | None = setting(
        "key store with certificate and key",
        PATH,
        default=None,
        key="ssl.keyStore.location",
        option=Option(),
        replaces=("certificate", "key"),
    )
    key_store_password: str | None = setting(
        "password of the key store and of its key",
        TEXT,
        default=None,
        key="ssl.keyStore.password",
        option=Option(),
        secret=True,
    )
    key_store_type: str = setting(
        "type of the key store: JKS, PKCS12 or PEM",
        STORE_TYPE,
        default=DEFAULT_STORE_TYPE,
        key="ssl.keyStore.type",
        option=Option(),
    )
    trust_store: Path | None = setting(
        "who may connect: certificates that vouch for peers",
        PATH,
        default=None,
        key="ssl.trustStore.location",
        option=Option(),
    )
    trust_store_password: str | None = setting(
        "password of the trust store",
        TEXT,
        default=None,
        key="ssl.trustStore.password",
        option=Option(),
        secret=True,
    )
    trust_store_type: str = setting(
        "type of the trust store: JKS, PKCS12 or PEM",
        STORE_TYPE,
        default=DEFAULT_STORE_TYPE,
        key="ssl.trustStore.type",
        option=Option(),
    )
    verify_names: bool = True

    def check(self) -> None:
        """Raise InvalidRequestError if the options contradict each other or a store type is unknown."""
        if self.certificate is not None and self.key_store is not None:
            raise InvalidOptionsError(
                f"{self.certificate} and {self.key_store}: a certificate and a key store are both given",
                self,
                "certificate",
                "key_store",
                advice="leave one of them out",
            )
        if self.key is not None and self.certificate is None:
            raise InvalidOptionsError(f"{self.key}: a private key is given without its certificate", self, "key")
        check_bounds(self)


TLS = Settings("tls", TlsOptions)
"""The TLS options of a client."""


def client_names() -> tuple[str, ...]:
    """The option names of a client, without dashes.  Passwords are read from files only."""
    names = []
    for one in TLS.listed:
        name = (one.declared.option and one.declared.option.also) or one.name
        names.append(f"{name}-file" if one.secret else name)
    return tuple(names)
