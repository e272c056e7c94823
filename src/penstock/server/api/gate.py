"""Answers requests before the engine is ready: the server runs but cannot serve data yet.

Or ever: where the directory is not that of the member of a cluster that it says it is.
"""

from __future__ import annotations

import penstock
from penstock.kernel.clock import Clock
from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import CallError, Replaying
from penstock.protocol.routes import Route
from penstock.server.api.answers import encode
from penstock.server.api.auth import query_token
from penstock.server.api.call import ROUTES
from penstock.server.api.errors import error_answer
from penstock.server.api.sessions import Authenticator
from penstock.server.http.message import Answer, Application, Exchange, Sender
from penstock.server.http.origins import preflight


class Gate:
    """Passes requests to the application once it exists; until then only health succeeds."""

    def __init__(self, clock: Clock, auth: Authenticator, *, probe_auth: bool) -> None:
        self._clock = clock
        self._auth = auth
        self._probe_auth = probe_auth
        self.started_ms = clock.monotonic_ms()
        self.application: Application | None = None
        self.refusal: CallError | None = None
        """Why there will be no application."""

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        if self.application is not None:
            self.application(exchange)
            return
        answer = self._answer(exchange)
        exchange.reply(answer.status, answer.body, headers=answer.headers)

    def check_head(self, method: str, headers: dict[str, str], sender: Sender) -> CallError | None:
        """Why a sender may not use memory for a body; None if it may.

        Every call with a body changes something, and needs a key or a cookie where there are keys.
        """
        try:
            sender.check(changes=method != "GET")
            if method in ("POST", "PUT"):
                self._auth.grant_of(headers, sender)
        except CallError as refused:
            return refused
        return None

    def _answer(self, exchange: Exchange) -> Answer:
        request = exchange.request
        sender = request.sender
        try:
            asked = preflight(request.method, request.headers, sender)
            if asked is not None:
                return asked
            sender.check(changes=False)
            route = None
            try:
                route, _ = ROUTES.find(request.method, request.path)
            finally:
                if not self._is_open(route):
                    in_query = route is not None and route.key_in_query
                    key = query_token(request.query) if in_query else None
                    self._auth.grant_of(request.headers, sender, key)
            sender.check(changes=route.changes)
            if route.name != "health":
                raise self.refusal or Replaying(0.0)
        except PenstockError as error:
            return error_answer(error)
        uptime_ms = self._clock.monotonic_ms() - self.started_ms
        shown = {"status": "ok", "version": penstock.__version__, "uptime_ms": uptime_ms}
        return Answer(200, encode(shown))

    def _is_open(self, route: Route | None) -> bool:
        """Whether no key is needed here; a handler that checks keys itself is not reached yet."""
        if route is None:
            return False
        return route.guard == "own" or (route.guard == "probe" and not self._probe_auth)
