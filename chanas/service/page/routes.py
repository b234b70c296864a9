"""The routes of the page. Forms are taken from our own pages alone: a browser says by `Origin` where one comes from."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Annotated, Any, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from chanas.errors import ServiceError
from chanas.models.sources.opening import library_of
from chanas.service.api.routes import Of, State, Tenant, read_body, read_log
from chanas.service.api.service import COOKIE, is_open, submit_request, tenant_for
from chanas.service.api.views import job_view
from chanas.service.page import shown
from chanas.service.page.render import SIGN_IN, PageRoute, go_to, page
from chanas.service.requests import parse_request
from chanas.service.store.jobs import CANCEL, MAX_SEQ, NOTHING, PAUSE
from chanas.service.store.use import MINUTE_S, read_best, read_use
from chanas.service.texts import about

MAX_FORM_BYTES = 1 << 13
MAX_KEY = 200
COOKIE_S = 7 * 24 * 3600
NUM_JOBS, NUM_BEST, NUM_LOG_LINES = 50, 50, 60
_WANTED = {"cancel": CANCEL, "pause": PAUSE, "resume": NOTHING}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that one of our pages has sent; empty ones are left out.

    Raises:
        ServiceError: it is from elsewhere, or nothing says that it is not (403).
    """
    if "origin" not in request.headers:  # one of another site did not come as far as here
        raise ServiceError("a form is taken from a page of this service alone", 403)
    body = await read_body(request, MAX_FORM_BYTES)
    return dict(parse_qsl(body.decode(errors="replace")))


Form = Annotated[dict[str, str], Depends(read_form)]


@router.get("/")
async def jobs(
    request: Request,
    service: Of,
    tenant: Tenant,
    before: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
    state: State | None = None,
) -> Response:
    """Show jobs, the newest first, and a form for another."""
    rows = service.store.page(tenant, before, NUM_JOBS, state)
    return page(
        request,
        "jobs.html",
        tenant,
        jobs=[shown.job_shown(job_view(row)) for row in rows],
        following=rows[-1]["seq"] if len(rows) == NUM_JOBS else None,
        state=state,
        states=get_args(State),
        now=time.time(),
        key=secrets.token_hex(16),
    )


@router.post("/jobs")
async def submit(service: Of, tenant: Tenant, form: Form) -> Response:
    """Submit a network: an upload, or one of torchvision or timm. The key in the form makes two clicks one job."""
    name = form.get("model", "").strip()
    demand: dict[str, Any] = {}
    for field, scale in (("latency_ms", 1e-3), ("minutes", 1.0), ("priority", None)):
        if field in form:
            try:
                value = int(form[field]) if scale is None else scale * float(form[field])
            except ValueError:
                raise ServiceError(f"{field}: expected a number, got '{form[field][:20]}'", 422) from None
            demand["latency_s" if field == "latency_ms" else field] = value
    named = name if library_of(name) is not None else f"torchvision:{name}"
    asked = {"kind": "model", "model": form.get("upload") or named}
    text = json.dumps({**asked, "demand": demand}).encode()
    job, _ = await submit_request(service, tenant, parse_request(text), form.get("key", "")[:MAX_KEY] or None)
    return go_to(f"/jobs/{job['id']}")


@router.get("/jobs/{job}")
async def show_job(request: Request, job: str, service: Of, tenant: Tenant) -> Response:
    """Show all that is known of a job."""
    row = service.store.get(tenant, job)
    log = (await read_log(service, row["id"])).splitlines()[-NUM_LOG_LINES:]
    return page(
        request,
        "job.html",
        tenant,
        job=shown.job_shown(job_view(row)),
        events=service.store.events(job, 0),
        log="\n".join(log),
        now=time.time(),
    )


@router.post("/jobs/{job}/{what}")
async def ask_for(
    job: str, what: Literal["cancel", "pause", "resume"], service: Of, tenant: Tenant, form: Form
) -> Response:
    """Cancel, pause or resume a job, and go back to where that was asked."""
    await asyncio.wrap_future(service.store.want(tenant, job, _WANTED[what]))
    return go_to("/" if form.get("from") == "jobs" else f"/jobs/{job}")


@router.get("/devices")
async def devices(
    request: Request, service: Of, tenant: Tenant, minutes: Literal["60", "1440", "10080"] = "60"
) -> Response:
    """Show the devices, their use, and the fastest networks."""
    span, now_s = int(minutes), time.time()
    told = list(service.runner.work.devices())
    use = read_use(service.database, now_s - span * MINUTE_S, shown.SPANS[span][1])
    resources = {name: num for device in told for name, num in device["resources"].items()}
    best = [{**row, "about": about(row["request"])} for row in read_best(service.database, tenant)]
    return page(
        request,
        "devices.html",
        tenant,
        devices=told,
        strips=shown.strips(resources, use, span, now_s, service.runner.lost),
        best=best[:NUM_BEST],
        span=span,
        spans=shown.SPANS,
        counts=service.store.count(),
    )


@router.get(SIGN_IN)
async def show_sign_in(request: Request, service: Of) -> Response:
    """Show the form for a token, where one is needed."""
    return go_to("/") if is_open(service) else page(request, "sign_in.html", None, error=None)


@router.post(SIGN_IN)
async def sign_in(request: Request, service: Of, form: Form) -> Response:
    """Keep a token in a cookie that scripts and other sites do not get."""
    token = form.get("token", "").strip()
    try:
        tenant_for(service, token)
    except ServiceError as error:
        return page(request, "sign_in.html", None, error.status, error=str(error))
    is_tls = urlsplit(request.headers["origin"]).scheme == "https"  # of the proxy: the browser knows
    response = go_to("/")
    response.set_cookie(COOKIE, token, max_age=COOKIE_S, httponly=True, samesite="strict", secure=is_tls)
    return response


@router.post("/sign-out")
async def sign_out(form: Form) -> Response:
    """Forget the token."""
    response = go_to(SIGN_IN)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
