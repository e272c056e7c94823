"""Shared by both transports: TLS, deadlines, and the errors of connecting and waiting."""

from __future__ import annotations

import socket
import ssl
from time import monotonic

from penstock.client.errors import (
    ClientClosed,
    Disconnected,
    Limited,
    TimedOut,
    Unreachable,
    Untrusted,
)
from penstock.client.settings import ClientSettings
from penstock.protocol.errors import CallError


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """The TLS context. Certificates are always verified, by the system's CAs or `ca_file`."""
    context = ssl.create_default_context(cafile=settings.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def time_left(deadline_s: float, server: str) -> float:
    """Seconds until a deadline; `Unreachable` if it has passed before anything was sent."""
    left_s = deadline_s - monotonic()
    if left_s <= 0:
        raise Unreachable(f"the deadline was over before anything was sent to {server}")
    return left_s


def closed_error(what: str) -> ClientClosed:
    """The error of every use after `close`."""
    return ClientClosed(f"this {what} is closed; make another")


def disconnected_error(url: str) -> Disconnected:
    """The server closed the connection instead of answering."""
    return Disconnected(f"{url} closed the connection before its answer was complete")


def silence_error(url: str, silence_s: float | None) -> TimedOut:
    """The server sent nothing for this long; None if the deadline came first."""
    when = "before the deadline" if silence_s is None else f"within {silence_s:g} s"
    return TimedOut(f"{url} did not answer {when}")


def pool_error(settings: ClientSettings) -> Unreachable:
    """Every connection stayed in use."""
    return Unreachable(
        f"all {settings.connections_max} connections to {settings.url} stayed in use until the "
        "deadline; raise connections_max or make fewer calls at once"
    )


def streams_error(settings: ClientSettings) -> Limited:
    """Too many streams are open."""
    return Limited(
        f"the client has {settings.streams_max} streams open already; close one or raise "
        "streams_max"
    )


def unreachable(url: str, error: BaseException, waited_s: float) -> CallError:
    """The error for a connection that could not be opened."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Untrusted(f"the certificate of {url} is not trusted ({error.verify_message})")
    return Unreachable(f"cannot connect to {url}: {_reason(error, waited_s)}")


def _reason(error: BaseException, waited_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no connection after {waited_s:g} s"
    if isinstance(error, socket.gaierror):
        return f"no such host ({error.strerror or error})"
    if isinstance(error, ssl.SSLError):
        return f"no usable TLS ({error.reason or error})"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused"
    strerror = error.strerror if isinstance(error, OSError) else None
    return (strerror or str(error) or type(error).__name__).lower()
