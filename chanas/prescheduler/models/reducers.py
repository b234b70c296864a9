"""Reductions of TVM's beside its own sum: NaN where a number is NaN, and infinities as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from chanas.prescheduler.models import elementwise


def _reducer(both: Callable[[Any, Any], Any], start: Callable[[str], Any], name: str) -> Any:
    return te.comm_reducer(both, start, name=name)


def _least(dtype: str) -> Any:
    return tirx.const(-math.inf, str(dtype)) if str(dtype).startswith("float") else tirx.min_value(str(dtype))


def _greatest(dtype: str) -> Any:
    return tirx.const(math.inf, str(dtype)) if str(dtype).startswith("float") else tirx.max_value(str(dtype))


LARGEST = _reducer(elementwise.maximum, _least, "largest")
"""The largest number along axes; NaN where one is."""
SMALLEST = _reducer(elementwise.minimum, _greatest, "smallest")
PRODUCT = _reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, str(dtype)), "product")
