"""TVM's MetaSchedule on one operator, in a process of its own: `tuning_efficiency.py` starts it.

    python metaschedule_worker.py TIMING_CORE BUILDING_CORE

reads one JSON request from standard input and writes one JSON answer to the descriptor that standard output was. The
operator is the one that chanas schedules (same layout, epilogue fused), unscheduled. Candidates are built in forks of
this process on the building core (the stock builder starts Python and parses TVM's intrinsics anew every round), and
run by the stock runner on the timing core.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUILD_TIMEOUT_S, RUN_TIMEOUT_S = 10.0, 10.0
TRIALS_PER_ROUND = 16


def in_fork(work: Callable[[], None], timeout_s: float) -> str | None:
    """Do some work in a fork of this process; why it failed, or None."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(write, b"done")
        except Exception as error:
            os.write(write, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        if not select.select([read], [], [], timeout_s)[0]:
            os.kill(child, signal.SIGKILL)
            return f"timeout: more than {timeout_s:g} s"
        answer = os.read(read, 400)
        return None if answer == b"done" else (answer.decode(errors="replace") or "crash")
    finally:
        os.close(read)
        os.waitpid(child, 0)


def _pin_to_timing_core() -> None:
    os.sched_setaffinity(0, {int(os.environ["CHANAS_TIMING_CORE"])})


def tune(workload: dict[str, Any], target: dict[str, Any], num_trials: int, seed: int, library: str) -> dict[str, Any]:
    """Tune one operator and compile the best schedule to `library`.

    Returns:
        run_s: seconds of each trial in order, as MetaSchedule measured it (None: it failed); at_s: when each was known,
        in seconds since the start; wall_s: seconds for all of it.
    """
    start = time.perf_counter()
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    from tvm import te
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    from chanas.core.target import HardwareTarget
    from chanas.operators.workload import Workload
    from chanas.prescheduler.codegen.cpu.build import build_function
    from chanas.prescheduler.kernels.cpu.families import operator_arguments

    device = HardwareTarget.from_json(target)
    arguments = operator_arguments(Workload.from_json(workload), device.vector_lanes)
    function = te.create_prim_func(list(arguments)).with_attr("global_symbol", "main")
    folder = Path(tempfile.mkdtemp(prefix="chanas-metaschedule-"))
    run_s: list[float | None] = []
    at_s: list[float] = []

    @derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
        """Each candidate in a fork, into a folder of its own: MetaSchedule removes the folder afterwards."""

        def build(self, build_inputs: list[Any]) -> list[Any]:
            results = []
            for given in build_inputs:
                path = Path(tempfile.mkdtemp(dir=folder)) / "candidate.so"

                def work(mod: Any = given.mod, path: Path = path) -> None:
                    build_function(mod["main"], device, path)

                error = in_fork(work, BUILD_TIMEOUT_S)
                results.append(ms.builder.BuilderResult(None if error else str(path), error))
            return results

    @derived_object
    class Clock(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """Notes what was measured, and when."""

        def apply(self, task_scheduler: Any, task_id: int, candidates: Any, built: Any, ran: Any) -> None:
            for result in ran:
                failed = result.error_msg is not None
                run_s.append(None if failed else sum(float(s) for s in result.run_secs) / len(result.run_secs))
                at_s.append(time.perf_counter() - start)

    try:
        goal = device.tvm_target()
        database = ms.tune_tir(
            function,
            target=goal,
            work_dir=str(folder / "database"),
            max_trials_global=num_trials,
            num_trials_per_iter=min(TRIALS_PER_ROUND, num_trials),
            builder=Builder(),
            runner=ms.runner.LocalRunner(
                timeout_sec=RUN_TIMEOUT_S,
                evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=10),
                initializer=_pin_to_timing_core,
            ),
            measure_callbacks=[
                Clock(),
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
                ms.measure_callback.RemoveBuildArtifact(),
            ],
            num_tuning_cores=1,
            seed=seed + 1,
        )
        schedule = ms.tir_integration.compile_tir(database, function, goal)
        if schedule is not None:
            build_function(schedule.mod["main"], device, Path(library))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"run_s": run_s, "at_s": at_s, "wall_s": time.perf_counter() - start, "built": schedule is not None}


def main() -> None:
    """Answer one request."""
    os.environ["CHANAS_TIMING_CORE"] = sys.argv[1]
    os.sched_setaffinity(0, {int(sys.argv[2])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        answer: dict[str, Any] = {"result": tune(**request)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
