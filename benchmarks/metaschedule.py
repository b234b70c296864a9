"""TVM's MetaSchedule, asked to tune an operator or a network: `metaschedule_worker.py` does it in a process of its own.

A network is tuned for as many seconds as chanas took, builds on all cores, runs on those that everything is timed on.
What was tuned stays in its folder, so that a second comparison does not tune it again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.devices.cores import split_cores

METASCHEDULE = "MetaSchedule"
_WORKER = Path(__file__).resolve().parent / "metaschedule_worker.py"
_ANSWER = "metaschedule.json"
# Beside tuning itself: imports and passes before it, the search under way at its end, and compiling.
_MORE_S = 900.0


def ask_worker(
    kind: str, cores: tuple[Sequence[int], Sequence[int]], timeout_s: float, num_threads: int = 1, **request: Any
) -> dict[str, Any]:
    """What the worker answers to a request of a kind (`metaschedule_worker.KINDS`), or {"error": why}.

    Args:
        cores: those that candidates run on, and those that they are built on.
    """
    try:
        done = subprocess.run(
            [sys.executable, str(_WORKER), *(",".join(map(str, part)) for part in cores)],
            input=json.dumps({"kind": kind, **request}) + "\n",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": str(num_threads)},
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout_s:g} s"}
    except (IndexError, ValueError):
        return {"error": f"ended with code {done.returncode}: {done.stderr[-200:]}"}
    result: dict[str, Any] = answer.get("result", answer)
    return result


def tune_network(
    onnx: Path,
    target: HardwareTarget,
    seconds: float,
    seed: int,
    folder: Path,
    ask: Callable[..., dict[str, Any]] = ask_worker,
) -> dict[str, Any]:
    """Tune a network for so many seconds into a folder, unless it was tuned there like this before.

    Returns:
        The compiled `library`, and what `metaschedule_worker.tune_network` says; or {"error": why}.
    """
    effort = {"seconds": seconds, "seed": seed}
    content = {"target": target.fingerprint, **effort, "library": str(folder / "network.so")}
    kept = kept_answer(folder)
    if kept is not None and content.items() <= kept.items():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ANSWER).unlink(missing_ok=True)
    timing, others = split_cores(target.num_threads)
    cores = (timing, [*timing, *others])
    paths = {"onnx": str(onnx), "library": content["library"]}
    request = {"target": target.to_json(), **effort, **paths}
    content |= ask("network", cores, seconds + _MORE_S, target.num_threads, **request)
    if "error" not in content:
        (folder / _ANSWER).write_text(json.dumps(content), encoding="utf-8")
    return content


def kept_answer(folder: Path) -> dict[str, Any] | None:
    """What `tune_network` gave for a folder, or None."""
    path = folder / _ANSWER
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def describe(answer: Mapping[str, Any]) -> str:
    """What tuning came to, in a line."""
    trials = f"{answer['trials']} trials ({answer['failed_trials']} failed) in {answer['tuning_s']:.0f} s"
    return f"{METASCHEDULE}: {trials}, {answer['untuned_tasks']} of {answer['tasks']} tasks without a schedule"
