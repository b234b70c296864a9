"""The routes of the API. Handlers are short: they read the database, or wait for one change of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from chanas import __version__
from chanas.errors import ServiceError
from chanas.service.api.events import Hub, Stream
from chanas.service.api.service import Service, service_asked, submit_request, tenant_asking
from chanas.service.api.views import job_view
from chanas.service.requests import parse_request
from chanas.service.store.jobs import CANCEL, COMPLETE, ENDED, MAX_SEQ, NOTHING, PAUSE
from chanas.service.store.use import MINUTE_S, read_best, read_use

MAX_REQUEST_BYTES = 1 << 16
MAX_LOG_BYTES = 1 << 18
MAX_PAGE = 500
MAX_WHOLE_BYTES = 1 << 18
"""Bytes of a bundle that is read at once: a larger one is read by a thread, bit by bit."""
DAY_MINUTES = 24 * 60

Tenant = Annotated[str, Depends(tenant_asking)]
Of = Annotated[Service, Depends(service_asked)]
State = Literal["queued", "paused", "running", "complete", "failed", "cancelled"]

router = APIRouter(prefix="/v1")


def _check_type(request: Request, expected: str) -> None:
    """Demand a type that pages of other sites cannot send without asking first."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != expected:
        raise ServiceError(f"expected Content-Type {expected}, got '{given}'", 415)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        ServiceError: it is longer (413).
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise ServiceError(f"expected at most {max_bytes} bytes; this is more", 413)
    return bytes(body)


@router.get("/health")
async def health(service: Of) -> Response:
    """Tell whether jobs run, and why they do not; needs no token."""
    fault = service.runner.fault
    told = {"status": "ok" if fault is None else "failed", "version": __version__}
    return JSONResponse(told if fault is None else {**told, "error": fault}, 200 if fault is None else 503)


@router.post("/uploads", status_code=201)
async def upload(request: Request, service: Of, tenant: Tenant) -> Response:
    """Store a file, the body as it is, under its SHA-256."""
    _check_type(request, "application/octet-stream")
    sha256, num_bytes = await service.uploads.receive(tenant, request.stream())
    return JSONResponse({"upload": sha256, "num_bytes": num_bytes}, 201)


@router.delete("/uploads/{sha256}", status_code=204)
async def delete_upload(sha256: str, service: Of, tenant: Tenant) -> Response:
    """Remove an upload of one's own."""
    await asyncio.to_thread(service.uploads.delete, tenant, sha256)
    return Response(status_code=204)


@router.post("/jobs", status_code=201)
async def submit(
    request: Request,
    service: Of,
    tenant: Tenant,
    key: Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)] = None,
) -> Response:
    """Submit a job: 201, or 200 where this key has submitted it before."""
    _check_type(request, "application/json")
    asked = parse_request(await read_body(request, MAX_REQUEST_BYTES))
    found, is_new = await submit_request(service, tenant, asked, key)
    return JSONResponse(found, 201 if is_new else 200)


@router.get("/jobs")
async def jobs(
    service: Of,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    before: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
    state: State | None = None,
) -> Response:
    """List jobs of one's own, the newest first; `before=next` gives the next page."""
    rows = service.store.page(tenant, before, limit, state)
    following = rows[-1]["seq"] if len(rows) == limit else None
    return JSONResponse({"jobs": [job_view(row) for row in rows], "next": following})


@router.get("/jobs/{job}")
async def job(job: str, service: Of, tenant: Tenant) -> Response:
    """Tell of a job."""
    return JSONResponse(job_view(service.store.get(tenant, job)))


@router.get("/jobs/{job}/events")
async def events(
    job: str,
    request: Request,
    service: Of,
    tenant: Tenant,
    last: Annotated[int, Header(alias="Last-Event-ID", ge=0, le=MAX_SEQ)] = 0,
) -> Response:
    """Stream changes of a job, from the beginning or after the last event that was seen; 204 where none will come."""
    hub: Hub = request.app.state.hub
    row = service.store.get(tenant, job)
    if row["state"] in ENDED and not service.store.events(job, last):
        return Response(status_code=204)
    return Stream(hub, tenant, job, last)


@router.post("/jobs/{job}/cancel", status_code=202)
async def cancel(job: str, service: Of, tenant: Tenant) -> Response:
    """End a job; what it has learned is kept."""
    return await _want(service, tenant, job, CANCEL)


@router.post("/jobs/{job}/pause", status_code=202)
async def pause(job: str, service: Of, tenant: Tenant) -> Response:
    """Break a job off until it is resumed; what it has learned is kept."""
    return await _want(service, tenant, job, PAUSE)


@router.post("/jobs/{job}/resume", status_code=202)
async def resume(job: str, service: Of, tenant: Tenant) -> Response:
    """Queue a paused job again."""
    return await _want(service, tenant, job, NOTHING)


async def _want(service: Service, tenant: str, job: str, wanted: str) -> Response:
    await asyncio.wrap_future(service.store.want(tenant, job, wanted))
    return JSONResponse(job_view(service.store.get(tenant, job)), 202)


@router.get("/jobs/{job}/bundle")
async def bundle(job: str, service: Of, tenant: Tenant) -> Response:
    """Send the bundle of a complete job, a tar archive."""
    row = service.store.get(tenant, job)
    if row["state"] != COMPLETE or row["bundle"] is None:
        raise ServiceError(f"job {job} has no bundle: it is {row['state']}", 409)
    path = service.runner.work.bundle(row["bundle"])
    if path.stat().st_size <= MAX_WHOLE_BYTES:
        headers = {"content-disposition": f'attachment; filename="{job}.tar"'}
        return Response(path.read_bytes(), media_type="application/x-tar", headers=headers)
    return FileResponse(path, media_type="application/x-tar", filename=f"{job}.tar")


@router.get("/jobs/{job}/log")
async def log(job: str, service: Of, tenant: Tenant) -> Response:
    """Send the end of what a job has printed."""
    row = service.store.get(tenant, job)
    return PlainTextResponse(await read_log(service, row["id"]))


async def read_log(service: Service, job: str) -> str:
    """The end of what a job has printed."""
    return await asyncio.to_thread(_tail, service.runner.work.log(job))


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


@router.get("/devices")
async def devices(
    service: Of, tenant: Tenant, minutes: Annotated[int, Query(ge=1, le=7 * DAY_MINUTES)] = 60
) -> Response:
    """Tell of the devices: what they are, how busy each unit was in each of the last minutes, and what is fastest."""
    told: dict[str, Any] = {
        "devices": list(service.runner.work.devices()),
        "lost": [{"resource": name, "unit": unit} for name, unit in service.runner.lost],
        "use": read_use(service.database, time.time() - minutes * MINUTE_S),
        "best": read_best(service.database, tenant),
        "jobs": service.store.count(),
    }
    return JSONResponse(told)
