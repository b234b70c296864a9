"""The worker process with a compiler that aborts at everything but what is checked before the tuning.

Run as `python planted_abort.py`. It starts at once, without TVM: what works is invented.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

from chanas.prescheduler.measuring.local import worker


def build_operator(library: str, **_arguments: Any) -> dict[str, Any]:
    """Abort as LLVM does where a processor lacks an instruction."""
    if not Path(library).name.startswith("preflight-"):
        os.write(2, b"LLVM ERROR: planted\n")
        os.abort()
    Path(library).touch()
    return {"code": library}


def measure(**_arguments: Any) -> dict[str, Any]:
    """A right result in no time."""
    return {"seconds": 1e-6, "spread_s": 0.0, "max_error": 0.0}


if __name__ == "__main__":
    sys.modules["tvm"] = types.ModuleType("tvm")
    worker.CALLS.update(build_operator=build_operator, measure=measure)
    worker.main()
