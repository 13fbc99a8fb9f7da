"""The common part of commands that connect to a node: the options of the connection, and the parsing of addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from waltzctl.manual import ManualSection
from waltzctl.options import parsed, path_of, with_shared
from waltzctl.values import parse_duration

if TYPE_CHECKING:
    from waltzctl.console import Console
    from waltzctl.engine.client.connection_factory import ConnectionFactory
    from waltzctl.engine.net.addresses import Address

Result = TypeVar("Result")

PANEL = "Connection"
"""Heading in ``--help`` under which these options stand."""

SECURITY = ManualSection(
    "SECURITY",
    (
        (
            "Connections use TLS unless --plaintext is given. With --trust-store the node's certificate must be signed"
            " by it and match the host name; --insecure skips the check of the name. Without a trust store a node on"
            " this machine's loopback is trusted, with a note on stderr; any other node needs a certificate that this"
            " machine trusts, or --insecure. --plaintext off the loopback needs --insecure too."
        ),
        (
            "To a node that requests a certificate the client shows that of --key-store, or of --certificate and"
            " --certificate-key. JKS and PKCS12 stores are recognized; PEM must be named. A password is the first line"
            " of a file."
        ),
    ),
)


def _option(name: str, text: str, metavar: str = "FILE") -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=PANEL)


def _switch(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=PANEL)


@dataclass(frozen=True, slots=True)
class Connecting:
    """The options of a connection."""

    plaintext: Annotated[bool, _switch("--plaintext", "Connect without TLS.")] = False
    insecure: Annotated[bool, _switch("--insecure", "Accept any certificate, or no TLS, beyond this machine too.")] = (
        False
    )
    trust_store: Annotated[str | None, _option("--trust-store", "Trusted certificates.")] = None
    trust_store_type: Annotated[
        str | None, _option("--trust-store-type", "JKS, PKCS12 or PEM; default JKS.", "TYPE")
    ] = None
    trust_store_password_file: Annotated[
        str | None, _option("--trust-store-password-file", "File with its password in the first line.")
    ] = None
    key_store: Annotated[str | None, _option("--key-store", "Certificate and key to show to the node.")] = None
    key_store_type: Annotated[str | None, _option("--key-store-type", "JKS, PKCS12 or PEM; default JKS.", "TYPE")] = (
        None
    )
    key_store_password_file: Annotated[
        str | None, _option("--key-store-password-file", "File with its password in the first line.")
    ] = None
    certificate: Annotated[str | None, _option("--certificate", "Instead, as PEM: certificate, then its chain.")] = None
    certificate_key: Annotated[
        str | None, _option("--certificate-key", "PEM file with the private key; default: the same file.")
    ] = None
    certificate_key_password_file: Annotated[
        str | None, _option("--certificate-key-password-file", "File with that key's password in the first line.")
    ] = None
    timeout: Annotated[str | None, _option("--timeout", "How long to wait for each answer; default 30s.", "TIME")] = (
        None
    )

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the given options."""
        return tuple(
            "--" + field.name.replace("_", "-") for field in fields(self) if getattr(self, field.name) != field.default
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """The given options with their values, for the command line of another command that connects to the same nodes."""
        typed: list[str] = []
        for option in self.given:
            value = getattr(self, option.removeprefix("--").replace("-", "_"))
            typed += [option] if value is True else [option, value]
        return tuple(typed)

    def reach(self, console: Console | None = None) -> ConnectionFactory:
        """The factory of connections with these options; notes go through `console`.  Raises usage errors, DiskReadError."""
        seconds = parsed("--timeout", self.timeout, parse_duration)

        from waltzctl.engine.client.client_connection import DEFAULT_TIMEOUT
        from waltzctl.engine.client.connection_factory import ConnectionFactory
        from waltzctl.engine.net.configuration import Given, load_configuration
        from waltzctl.engine.net.tls_options import TLS, client_names

        known = client_names()
        texts = {name: getattr(self, name.replace("-", "_")) for name in known if f"--{name}" in self.given}
        if self.plaintext and texts:
            raise typer.BadParameter(
                "there are no certificates with --plaintext", param_hint=f"'--{next(iter(texts))}'"
            )
        for name, text in texts.items():
            if not name.endswith("-type"):
                path_of(text, name=f"--{name}")
        tls = load_configuration(TLS, given=[Given(name, text) for name, text in texts.items()])
        tls.check()
        return ConnectionFactory(
            tls.options,
            plaintext=self.plaintext,
            insecure=self.insecure,
            timeout=seconds or DEFAULT_TIMEOUT,
            on_note=(lambda text: None) if console is None else console.note,
        )


with_connection = with_shared(Connecting, "connection")
"""A decorator that gives a command the options of a connection, as one argument, `connection`."""


def address_of(text: str, *, name: str) -> Address:
    """An address as it was typed.  Raises typer.BadParameter."""
    from waltzctl.engine.errors import InvalidRequestError
    from waltzctl.engine.net.addresses import parse_address

    try:
        return parse_address(text)
    except InvalidRequestError as error:
        raise typer.BadParameter(error.message, param_hint=f"'{name}'") from None


def nodes_of(texts: Sequence[str], *, name: str) -> list[Address] | None:
    """The addresses of nodes; None where all texts are paths.  Raises typer.BadParameter for a wrong URL, or a mixture."""
    from waltzctl.engine.net.addresses import names_node, parse_url

    urls = [text for text in texts if names_node(text)]
    if not urls:
        return None
    if len(urls) < len(texts):
        raise typer.BadParameter("nodes and paths cannot be looked at together", param_hint=f"'{name}'")

    from waltzctl.engine.errors import InvalidRequestError

    try:
        return [parse_url(url) for url in urls]
    except InvalidRequestError as error:
        raise typer.BadParameter(error.message, param_hint=f"'{name}'") from None


def refuse_without_node(connection: Connecting, *, name: str = "PATH") -> None:
    """Raise typer.BadParameter where options of a connection were given without a node."""
    if connection.given:
        raise typer.BadParameter(f"is about nodes; {name} is no waltz:// URL", param_hint=f"'{connection.given[0]}'")


def refuse_with_node(**given: object) -> None:
    """Raise typer.BadParameter where an option was given that does not work with a node."""
    for name, value in given.items():
        if value is not None and value is not False:
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter("works on directories and files, not on a node", param_hint=f"'{option}'")
