"""The process of a job that asks workers for their process numbers: run as `python planted_tuning.py`.

A job called `fails` finds that it cannot work, one called `raises` has a fault, one called `dies` ends in mid-turn,
one called `killed` is killed the first time.
One called `endless…` goes on until it is ended, and then leaves a file.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

from chanas.errors import ConfigError
from chanas.measuring.fleet import wait_for_one
from chanas.measuring.messages import Ping
from chanas.measuring.shared.turns import Exchange, SharedPool, main

NUM_ROUNDS, NUM_BUILDS, TIMEOUT_S = 2, 3, 60.0


def tune(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
    """Build and time; on being ended, keep what there is."""
    try:
        return play(plan, exchange)
    except KeyboardInterrupt:
        Path(f"{plan['job']['run']}.kept").touch()
        raise


def play(plan: dict[str, Any], exchange: Exchange) -> dict[str, Any]:
    """Build a few at once and time each, round after round."""
    name, pool = plan["job"]["name"], SharedPool(exchange, plan["num_builders"], plan["overlap"], plan["num_devices"])
    builders, timers = set(), set()
    for _ in itertools.count() if name.startswith("endless") else range(NUM_ROUNDS):
        building = {pool.build(Ping(), TIMEOUT_S) for _ in range(NUM_BUILDS)}
        timing = set()
        while building or timing:
            for done in wait_for_one([*building, *timing]):
                pid = done.result().result["pid"]
                if done in building:
                    building.remove(done)
                    builders.add(pid)
                    timing.add(pool.measure(Ping(), TIMEOUT_S))
                else:
                    timing.remove(done)
                    timers.add(pid)
        if name == "fails":
            raise ConfigError("planted")
        if name == "raises":
            raise RuntimeError("planted fault")
        if name == "dies":
            os._exit(3)
        if name == "killed":
            kept = Path(f"{plan['job']['run']}.kept")
            if not kept.exists():
                kept.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if name == "renews":
            pool.renew_timers()
    return {"pid": os.getpid(), "builders": sorted(builders), "timers": sorted(timers)}


if __name__ == "__main__":
    main(tune)
