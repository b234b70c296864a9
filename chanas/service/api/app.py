"""The application: routes, errors as one line of JSON, and what guards them."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from chanas import __version__
from chanas.errors import ChanasError, ServiceError, one_line, shortage
from chanas.service.api.events import HEARTBEAT_S, Hub
from chanas.service.api.guard import Guard
from chanas.service.api.routes import router
from chanas.service.api.service import Service

_LOG = logging.getLogger("chanas.service")


def create_app(service: Service, heartbeat_s: float = HEARTBEAT_S) -> FastAPI:
    """The service's application; its runner is started and stopped by whoever made it."""
    hub = Hub(service.store, heartbeat_s)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        hub.start()
        yield
        hub.stop()

    # Its documentation pages would load scripts from elsewhere; docs/service.md and /openapi.json say the same.
    app = FastAPI(title="chanas", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service, app.state.hub = service, hub
    app.include_router(router)
    app.add_middleware(Guard, service=service)
    app.add_exception_handler(ChanasError, _tell)
    app.add_exception_handler(ClientDisconnect, _tell_nothing)
    app.add_exception_handler(OSError, _tell_shortage)
    app.add_exception_handler(sqlite3.Error, _tell_shortage)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(Exception, _tell_fault)
    return app


async def _tell(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        return await _tell_shortage(_request, error)
    status = error.status
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": str(error)}, status, headers)


async def _tell_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _tell_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    return JSONResponse({"error": f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"}, 422)


async def _tell_nothing(_request: Request, _error: Exception) -> Response:
    """Answer a client that has gone in the middle of its body."""
    return Response(status_code=400)


async def _tell_shortage(_request: Request, error: Exception) -> Response:
    """Tell that the machine is short of something, so that it is worth trying again; what is no shortage is a fault."""
    lacking = shortage(error)
    if lacking is None:
        raise error
    _LOG.warning("a request waits: %s", one_line(error))
    return JSONResponse({"error": f"the service is short: {lacking}; try again later"}, 503, {"retry-after": "5"})


async def _tell_fault(_request: Request, error: Exception) -> Response:
    """Tell nothing of a fault of ours but that it is one; the service's log has all of it."""
    _LOG.error("a request failed", exc_info=error)
    return JSONResponse({"error": "a fault of the service; its log says more"}, 500)
