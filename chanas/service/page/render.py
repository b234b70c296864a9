"""Templates rendered, and errors as pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from chanas import __version__
from chanas.errors import ServiceError
from chanas.service.api.service import is_open, service_of
from chanas.service.page import shown

SIGN_IN = "/sign-in"
_NO_STORE = {"cache-control": "no-store"}
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(duration=shown.duration, latency=shown.latency)
_TEMPLATES.globals["version"] = __version__


def page(request: Request, template: str, tenant: str | None, status: int = 200, **values: Any) -> Response:
    """A rendered template; `tenant` is who has signed in, if anybody."""
    can_leave = tenant is not None and not is_open(service_of(request))
    text = _TEMPLATES.get_template(template).render(tenant=tenant, can_leave=can_leave, **values)
    return HTMLResponse(text, status, _NO_STORE)


def go_to(path: str) -> RedirectResponse:
    """See a page of ours after a form."""
    return RedirectResponse(path, 303, _NO_STORE)


class PageRoute(APIRoute):
    """A route whose errors are pages; who has not signed in is sent to do so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except ServiceError as error:
                if error.status == 401:
                    return go_to(SIGN_IN)
                return page(request, "error.html", None, error.status, error=str(error))
            except RequestValidationError:
                return page(request, "error.html", None, 422, error="there is no such page")

        return guarded
