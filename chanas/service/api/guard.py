"""Requests that browsers are tricked into are refused, and answers say what browsers may do with them."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chanas.service.api.service import Service, is_open

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer browsers would not say where a form of ours comes from
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host")


class Guard:
    """Middleware. While no token is demanded, any page that the browser of this machine shows could use the service
    under a name of its own (DNS rebinding), and a proxy would open it to all: it answers to localhost alone then."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        fault = self._fault(Headers(scope=scope), scope["method"])
        if fault is not None:
            status, message = fault
            await JSONResponse({"error": message}, status)(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _fault(self, headers: Headers, method: str) -> tuple[int, str] | None:
        origin = headers.get("origin")
        try:
            host = urlsplit(f"//{headers.get('host', '')}")
            is_other = origin is not None and urlsplit(origin).netloc != host.netloc
        except ValueError:
            return 400, "Host or Origin is no address"
        if method not in ("GET", "HEAD") and is_other:
            return 403, "requests of other sites' pages are refused"
        if is_open(self._service):
            if host.hostname not in _LOOPBACK:
                return 421, "without tokens this service answers to localhost alone; `chanas serve token add` makes one"
            if any(name in headers for name in _FORWARDED):
                return 403, "behind a proxy tokens are needed; `chanas serve token add` makes one"
        return None
