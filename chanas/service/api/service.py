"""The service as the API and the page see it: its parts, its limits, who asks, and how jobs come in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from chanas.errors import ServiceError
from chanas.service.api.views import job_view
from chanas.service.requests import JobRequest
from chanas.service.runner import Runner
from chanas.service.store.database import Database
from chanas.service.store.jobs import JobStore, NewJob
from chanas.service.store.tokens import LOCAL, has_tokens, tenant_of
from chanas.service.store.uploads import Uploads
from chanas.service.store.use import MINUTE_S

MAX_OPEN_JOBS = 1000
"""Jobs of a tenant that have not ended."""
COOKIE = "chanas_token"
"""Sent by a browser that has signed in."""


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


def token_of(request: Request) -> str | None:
    """The token that a request shows: its own, or that of a browser that has signed in.

    A cookie comes with whatever a browser sends. One that changes something counts only if the browser says, by
    `Origin`, that a page of ours sends it; `Guard` has refused the pages of others.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    is_ours = request.method in ("GET", "HEAD") or "origin" in request.headers
    cookie = request.cookies.get(COOKIE) if is_ours else None
    return None if cookie is not None and is_open(service_of(request)) else cookie  # of another service of this host


def is_open(service: Service) -> bool:
    """True while no token is demanded."""
    return service.is_local and not has_tokens(service.database)


def tenant_for(service: Service, token: str | None) -> str:
    """The tenant that shows a token; `local` where none is demanded.

    Raises:
        ServiceError: a token is demanded, or this one is not known (401).
    """
    if token is None:
        if is_open(service):
            return LOCAL
        raise ServiceError("a token is needed: Authorization: Bearer TOKEN", 401)
    tenant = tenant_of(service.database, token)
    if tenant is None:
        raise ServiceError("this token is not known here", 401)
    return tenant


# FastAPI runs a dependency that is no coroutine in a thread, which costs more than all else of a short answer.


async def service_asked(request: Request) -> Service:
    """The service that a request is for."""
    return service_of(request)


async def tenant_asking(request: Request) -> str:
    """The tenant whose token a request shows."""
    return tenant_for(service_of(request), token_of(request))


async def submit_request(
    service: Service, tenant: str, asked: JobRequest, key: str | None
) -> tuple[dict[str, Any], bool]:
    """Take a job in; the job, and whether it is new.

    Raises:
        ServiceError: as `JobStore.submit` says; an upload is not there (404); no such job can be run here (422).
    """
    for sha256 in asked.uploads:
        service.uploads.check(tenant, sha256)
    minutes = asked.demand.minutes
    new = NewJob(
        tenant=tenant,
        key=key,
        digest=asked.digest(),
        kind=asked.kind,
        request=asked.model_dump(mode="json", exclude_unset=True),
        content=service.runner.work.content(asked),
        effort=asked.effort(),
        target=asked.target,
        priority=asked.demand.priority,
        deadline=None if minutes is None else time.time() + MINUTE_S * minutes,
        goals=asked.goals,
        reuse=asked.transfer,
    )
    job, is_new = await asyncio.wrap_future(service.store.submit(new, service.max_open_jobs))
    return job_view(service.store.get(tenant, job)), is_new
