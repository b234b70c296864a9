"""A server of `chanas device serve` on a machine with a GPU that is its processor (`stand_in`): run as
`python stand_in_server.py` with the command's arguments."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chanas.commands.process import main
from chanas.devices import host
from chanas.measuring.worker.process import WORKERS
from tests.measuring.stand_in import WORKER, found

if __name__ == "__main__":
    host.find_gpu = lambda: found()
    WORKERS["cuda"] = WORKER
    sys.argv[1:1] = ["device", "serve", "--target", "cuda"]
    main()
