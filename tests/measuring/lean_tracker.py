"""TVM's tracker without PyTorch, which takes seconds to import: run as `python lean_tracker.py PORT`."""

from __future__ import annotations

import sys

from chanas.devices.lean_tvm import hide_torch

if __name__ == "__main__":
    hide_torch()
    from tvm.rpc.tracker import PopenTrackerServerState

    port = int(sys.argv[1])
    PopenTrackerServerState("127.0.0.1", port, port + 1, silent=True).thread.join()
