"""Jobs as lines for people, on the page and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chanas.core.units import format_latency
from chanas.service.store.uploads import is_hash

_HASH_DIGITS = 12


def about(request: Mapping[str, Any]) -> str:
    """The name of a request's network or space, or the beginning of its upload's hash."""
    text = str(request.get("model") or request.get("space") or "the default space")
    return f"upload {text[:_HASH_DIGITS]}…" if is_hash(text) else text.removeprefix("torchvision:")


def demand(request: Mapping[str, Any]) -> str:
    """A job's demand in a line; empty without one."""
    given = request.get("demand", {})
    told = []
    if given.get("latency_s") is not None:
        told.append(f"≤ {format_latency(given['latency_s'])}")
    if given.get("accuracy") is not None:
        told.append(f"top-1 ≥ {given['accuracy']:.1%}")
    if given.get("minutes") is not None:
        told.append(f"{given['minutes']:g} min")
    if given.get("priority"):
        told.append(f"priority {given['priority']:+d}")
    return ", ".join(told)


def outcome(job: Mapping[str, Any]) -> str:
    """The result of a job, or how far it is, in a line."""
    if job["error"]:
        return str(job["error"])
    if job["result"] is None:
        return ", ".join(f"{kind} {number}" for kind, number in (job["progress"] or {}).items())
    result, told = job["result"], []
    if result.get("latency_s") is not None:
        told.append(format_latency(result["latency_s"]))
    if result.get("accuracy") is not None:
        told.append(f"top-1 {result['accuracy']:.2%}")
    if result.get("met") is not None:
        told.append("as demanded" if result["met"] else "demand not met")
    if result.get("at_once"):
        told.append("was there already")
    return ", ".join(told)
