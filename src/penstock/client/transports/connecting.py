"""What both ways to connect share: TLS, and words for why there is no connection."""

from __future__ import annotations

import socket
import ssl

from penstock.client.errors import Unreachable, Untrusted
from penstock.client.settings import ClientSettings
from penstock.protocol.errors import CallError


def tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Certificates are always checked, against the system's or those of `ca_file`."""
    context = ssl.create_default_context(cafile=settings.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def unreachable(url: str, error: BaseException, waited_s: float) -> CallError:
    """The error for a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        found = f"a certificate that is not trusted ({error.verify_message})"
        return Untrusted(f"expected a Penstock server at {url}, found {found}")
    return Unreachable(f"expected a Penstock server at {url}, found {_reason(error, waited_s)}")


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
