"""The worker process with a compiler that aborts at everything but what is checked before the tuning.

Run as `python planted_abort.py`. It starts at once, without TVM: what works is invented.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from chanas.measuring.messages import Build, Measure, Timing, TimingRequest
from chanas.measuring.worker import cpu


def build(request: Build) -> dict[str, Any]:
    """Abort as LLVM does where a processor lacks an instruction."""
    if not request.path.name.startswith("preflight-"):
        os.write(2, b"LLVM ERROR: planted\n")
        os.abort()
    request.path.touch()
    return {"code": str(request.path)}


def measure(_request: TimingRequest) -> Timing:
    """A right result in no time."""
    return Timing(1e-6, 0.0, 1, 0.0)


if __name__ == "__main__":
    sys.modules["tvm"] = types.ModuleType("tvm")
    cpu.CALLS.update({Build: build, Measure: measure})
    cpu.main()
