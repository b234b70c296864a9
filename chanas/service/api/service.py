"""The service as the API sees it: its parts, its limits, and who asks."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from chanas.errors import ServiceError
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore
from chanas.service.store.tokens import LOCAL, has_tokens, tenant_of
from chanas.service.store.uploads import Uploads

MAX_OPEN_JOBS = 1000
"""Jobs of a tenant that have not ended."""


@dataclass(frozen=True)
class Service:
    """Parts of the service.

    is_local  it listens on this machine alone: while there are no tokens, none is demanded
    """

    database: Database
    store: JobStore
    uploads: Uploads
    runner: Runner
    is_local: bool = True
    max_open_jobs: int = MAX_OPEN_JOBS


def service_of(request: Request) -> Service:
    """The service that a request is for."""
    service: Service = request.app.state.service
    return service


def bearer_of(request: Request) -> str | None:
    """The token that a request shows."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def tenant_for(service: Service, token: str | None) -> str:
    """The tenant that shows a token; `local` where none is demanded.

    Raises:
        ServiceError: a token is demanded, or this one is not known (401).
    """
    if token is None:
        if service.is_local and not has_tokens(service.database):
            return LOCAL
        raise ServiceError("a token is needed: Authorization: Bearer TOKEN", 401)
    tenant = tenant_of(service.database, token)
    if tenant is None:
        raise ServiceError("this token is not known here", 401)
    return tenant


async def tenant_asking(request: Request) -> str:
    """The tenant whose token a request shows."""
    return tenant_for(service_of(request), bearer_of(request))
