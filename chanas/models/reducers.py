"""Reductions of TVM's beside its own sum: NaN where a number is NaN, and infinities as they are."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from chanas.models import elementwise


def _least(dtype: str) -> Any:
    return tirx.const(-math.inf, str(dtype)) if str(dtype).startswith("float") else tirx.min_value(str(dtype))


def _greatest(dtype: str) -> Any:
    return tirx.const(math.inf, str(dtype)) if str(dtype).startswith("float") else tirx.max_value(str(dtype))


LARGEST = te.comm_reducer(elementwise.maximum, _least, name="largest")
"""The largest number along axes; NaN where one is."""
SMALLEST = te.comm_reducer(elementwise.minimum, _greatest, name="smallest")
PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, str(dtype)), name="product")
