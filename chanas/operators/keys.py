"""Workloads from their keys, as records have them (docs/formats.md says how a key reads)."""

from __future__ import annotations

import functools
import re
from typing import Any

from chanas.errors import ScheduleError
from chanas.operators.workload import Workload

_KEY = re.compile(
    r"(?P<op>[a-z]+\d?)-(?P<rows>\d+)(x(?P<columns>\d+))?px-(?P<inputs>\d+)x(?P<outputs>\d+)"
    r"-k(?P<kernel>\d+)(x(?P<kernel_width>\d+))?s(?P<stride>\d+)(x(?P<column_stride>\d+))?"
    r"(d(?P<dilation>\d+x\d+))?(g(?P<groups>\d+))?(p(?P<padding>-?\d+(\.-?\d+){3}))?"
    r"-(?P<epilogue>[a-z]+[0-9.]*(e-\d+)?)(?P<scaled>-scaled(\.(?P<prologue>[a-z]+[0-9.]*(e-\d+)?))?)?"
    r"(-(?P<residual>res|sum))?(?P<wide>-wide)?"
    r"-(?P<dtype>[a-z]+\d+)(-b(?P<batch>\d+))?"
)


@functools.lru_cache(maxsize=1 << 14)
def workload_of_key(key: str) -> Workload:
    """The workload that has this key.

    Raises:
        ScheduleError: there is none.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise ScheduleError(f"expected the key of a workload, got '{key[:80]}'")
    widths = {"input_width": "columns", "kernel_width": "kernel_width", "column_stride": "column_stride"}
    general: dict[str, Any] = {
        **{field: int(match[name]) for field, name in widths.items() if match[name] is not None},
        "groups": int(match["groups"] or 1),
        "residual_first": match["residual"] == "sum",
        "prologue": match["prologue"],
    }
    if match["dilation"]:
        general["dilation"] = tuple(map(int, match["dilation"].split("x")))
    if match["padding"]:
        general["padding"] = tuple(map(int, match["padding"].split(".")))
    workload = Workload(
        match["op"],  # type: ignore[arg-type]  # another word fails below, or where its space is asked for
        int(match["rows"]),
        int(match["inputs"]),
        int(match["outputs"]),
        int(match["kernel"]),
        int(match["stride"]),
        match["epilogue"],
        scaled=match["scaled"] is not None,
        residual=match["residual"] is not None,
        dtype=match["dtype"],
        wide=match["wide"] is not None,
        batch=int(match["batch"] or 1),
        **general,
    )
    if workload.key != key:
        raise ScheduleError(f"expected the key of a workload, got '{key[:80]}', which reads as {workload.key}")
    return workload
