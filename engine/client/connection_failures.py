"""Errors for a connection that cannot be established, or ends, with advice.

A violation of the protocol often has a simple cause, such as a wrong port, or TLS on one side only; these causes are detected.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Collection

from waltzctl.engine.errors import DeadlineError, PeerError, PeerUnreachableError, ProtocolError
from waltzctl.engine.net.addresses import Address
from waltzctl.formats.wire.frame import FrameError, is_tls
from waltzctl.formats.wire.hello import ADMIN_SERVER, STORAGE_SERVER, WALTZ_SERVER

_SERVERS = {
    STORAGE_SERVER: "the data port of a storage node",
    ADMIN_SERVER: "the admin port of a storage node",
    WALTZ_SERVER: "the port of a Waltz server",
}


def not_connected(address: Address, error: Exception, timeout: float, *, tls: bool) -> PeerError:
    """The error for a connection that was not established within `timeout` seconds."""
    advice = "is it running, and is this its port?" + ("" if tls else " does it expect TLS?")
    if isinstance(error, PeerError):
        return error
    if isinstance(error, TimeoutError):
        return DeadlineError(str(address), f"no answer within {timeout:g} s while connecting", advice=advice)
    if isinstance(error, ssl.SSLError):
        return _tls_refused(address, error)
    return PeerUnreachableError(str(address), f"cannot connect: {_reason(error)}", advice=advice)


def lost_connection(address: Address, error: Exception | None) -> PeerUnreachableError:
    """The error for a lost connection.  `error`: the operating system's reason, if there is one."""
    if isinstance(error, ssl.SSLError):
        return _tls_refused(address, error)
    why = "the peer closed the connection" if error is None else f"the connection was lost: {_reason(error)}"
    return PeerUnreachableError(str(address), why)


def closed_by_peer(address: Address, *, greeted: bool) -> PeerUnreachableError:
    """The error for a connection that the peer closed.  `greeted`: whether the handshake was over."""
    advice = None if greeted else "without a greeting; does the port expect TLS, or a client certificate?"
    return PeerUnreachableError(str(address), "the peer closed the connection", advice=advice)


def no_frame(address: Address, error: FrameError, data: bytes, *, greeted: bool) -> ProtocolError:
    """The error for bytes that are not a frame.  `data`: the bytes received last."""
    if not greeted and is_tls(data):
        return ProtocolError(str(address), "the peer speaks TLS", advice="leave --plaintext out")
    advice = None if greeted else "this is no port of a storage node or log server"
    return ProtocolError(str(address), f"the peer sent what is no frame: {error}", advice=advice)


def another_port(address: Address, greeting: str, wanted: str) -> ProtocolError | None:
    """The error for a Hello whose text is that of another kind of port; None when it is the wanted one, or unknown."""
    if greeting == wanted or greeting not in _SERVERS:
        return None
    said = f"this is {_SERVERS[greeting]}, not {_SERVERS[wanted]}"
    return ProtocolError(str(address), said, advice="give the address of the other port")


def no_common_version(address: Address, theirs: Collection[int], ours: Collection[int]) -> ProtocolError:
    """The error for peers without a common codec version; it names at most ten of the peer's."""
    they = ", ".join(map(str, sorted(set(theirs))[:10])) or "none"
    we = ", ".join(map(str, ours))
    return ProtocolError(str(address), f"no common version: the peer speaks {they}, we {we}")


def _reason(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name cannot be looked up: {error.strerror}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _tls_refused(address: Address, error: ssl.SSLError) -> PeerUnreachableError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return PeerUnreachableError(
            str(address),
            f"the certificate of the peer is not accepted: {error.verify_message}",
            advice="give --trust-store with what vouches for it, or --insecure to accept any",
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    advice = "is it a port of a storage node or log server? one without TLS needs --plaintext, of Spark the option plaintext=true"
    if "certificate" in reason or "alert" in reason:
        advice = "it wants another certificate from us: --key-store or --certificate"
    return PeerUnreachableError(str(address), f"TLS cannot be agreed on: {reason}", advice=advice)
