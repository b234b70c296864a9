"""A run that does what its parameters say, in place of a command: it writes figures, fails, hangs or goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

parameters, folder, goes_on = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "goes on"
with open(folder / "starts", "a") as file:
    file.write(f"{os.getpid()} {'on' if goes_on else 'anew'} {len(os.sched_getaffinity(0))}\n")
does = parameters.get("does", "")
if does == "fails":
    sys.exit("chanas: error: planted")
if does == "fails once" and not (folder.parent / "mended").exists():
    sys.exit("chanas: error: planted once")
if does == "crashes":
    os.kill(os.getpid(), signal.SIGKILL)
if does == "hangs" and not goes_on:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
tuned = {"measured": {"latency_s": 1.0 / parameters["trials"]}, "trials": {"new": parameters["trials"], "failed": 0}}
(folder / "net").mkdir(exist_ok=True)
(folder / "net" / "tuned.json").write_text(json.dumps(tuned))
