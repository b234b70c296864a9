"""A server of `chanas device serve` on a machine with a GPU that is its processor (`stand_in`): run as
`python stand_in_server.py` with the command's arguments."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chanas.commands.process import main
from chanas.compiler.backends import BACKENDS
from chanas.devices import host
from tests.measuring.stand_in import WORKER, found

if __name__ == "__main__":
    host.find_gpu = lambda: found()
    BACKENDS["cuda"] = dataclasses.replace(BACKENDS["cuda"], worker=WORKER)
    sys.argv[1:1] = ["device", "serve", "--target", "cuda"]
    main()
