"""Handlers of signing in and out: a browser's cookie in place of an API key."""

from __future__ import annotations

import secrets
from typing import Final

from penstock.protocol.errors import Throttled
from penstock.protocol.routes import EVERYTHING, scope_names
from penstock.protocol.session import COOKIE, SESSION_MS, Session, SessionEnded
from penstock.server.api.auth import Grant
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.sessions import SignedIn
from penstock.server.http.message import Answer

TOKEN_BYTES: Final = 32
_NO_STORE: Final = (b"cache-control", b"no-store")


@ROUTES.post("/v0/session", answer=Session, errors=(Throttled,), guard="own", is_data=False)
def sign_in(call: Call) -> Answer:
    """Begin a session with the API key in the Authorization header; the answer sets its cookie.

    Idempotent only in its effect: each call makes another session.
    """
    token = secrets.token_urlsafe(TOKEN_BYTES)
    session = call.context.auth.sign_in(call.request.headers, call.exchange.peer, token)
    if session is None:
        return _answer(call, _told(call, None, None))
    cookie = _cookie(call, token, SESSION_MS // 1_000)
    return _answer(call, _told(call, session.grant, session), cookie)


@ROUTES.get("/v0/session", answer=Session, is_data=False)
def show_session(call: Call) -> Answer:
    """What the caller may do: the scopes and prefixes of its key or its cookie."""
    return _answer(call, _told(call, call.grant, _session(call)))


@ROUTES.delete("/v0/session", answer=SessionEnded, is_data=False)
def sign_out(call: Call) -> Answer:
    """End the session of the caller's cookie, and every stream that it opened."""
    session = _session(call)
    if session is None:
        return _answer(call, SessionEnded(ended=False))
    call.context.auth.sessions.end(session)
    call.context.end_sessions()
    return _answer(call, SessionEnded(ended=True), _cookie(call, "", 0))


def _session(call: Call) -> SignedIn | None:
    if call.grant is None:
        return None
    request = call.request
    session = call.context.auth.session_of(request.headers, request.sender)
    # The cookie of one key beside another key in the header says nothing about the caller.
    return session if session is not None and session.grant is call.grant else None


def _told(call: Call, grant: Grant | None, session: SignedIn | None) -> Session:
    clock = call.context.clock
    expires = None
    if session is not None:
        expires = clock.now_ms() + session.ends_ms - clock.monotonic_ms()
    return Session(
        signed_in=session is not None,
        needs_key=call.context.auth.keys is not None,
        scopes=scope_names(EVERYTHING if grant is None else grant.scopes).split("+"),
        prefixes=[] if grant is None else list(grant.prefixes),
        key=None if grant is None else grant.label,
        expires=expires,
    )


def _cookie(call: Call, token: str, age_s: int) -> tuple[bytes, bytes]:
    text = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age_s}"
    # Where a proxy ends TLS, the origin of the page tells.
    if call.context.is_tls or call.request.headers.get("origin", "").startswith("https://"):
        text += "; Secure"
    return b"set-cookie", text.encode()


def _answer(call: Call, told: Session | SessionEnded, *headers: tuple[bytes, bytes]) -> Answer:
    return call.tell(told)._replace(headers=(_NO_STORE, *headers))
