"""TVM's MetaSchedule on one operator or network, in a process of its own: `metaschedule.py` starts it.

    python metaschedule_worker.py TIMING_CORE[,…] BUILDING_CORE[,…]

reads one JSON request from standard input and writes one JSON answer to the descriptor that standard output was. An
operator is the one that chanas schedules (same layout, epilogue fused), unscheduled. A network is an ONNX file, with
channels first as it was imported, after the passes of TVM's own `static_shape_tuning` pipeline for CPUs: operators
legalised and fused, weights in the layouts that its schedules ask for. Candidates are built in forks of this process,
one at a time on each building core (the stock builder starts Python and parses TVM's intrinsics anew every round), and
run by the stock runner on the timing cores. All else is as MetaSchedule has it: spaces, evolutionary search, gradient
scheduler, and its XGBoost model where xgboost is installed (a random one elsewhere).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUILD_TIMEOUT_S, RUN_TIMEOUT_S = 10.0, 10.0
TRIALS_PER_ROUND = 16
# What a round of a network's task takes, about: the search, and each trial.
SEARCH_S, TRIAL_S = 5.0, 0.5
FEWEST_PER_ROUND, MOST_PER_ROUND = 4, 64
NO_LIMIT = 1_000_000


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


def trials_per_round(seconds: float, num_tasks: int) -> int:
    """So many that the first round of every task takes about half of the time: a task without one stays unscheduled.
    MetaSchedule's default of 64 is for hours."""
    left_s = seconds / (2.0 * num_tasks) - SEARCH_S
    return min(max(int(left_s / TRIAL_S), FEWEST_PER_ROUND), MOST_PER_ROUND)


def _pin_to_timing_cores() -> None:
    os.sched_setaffinity(0, {int(core) for core in os.environ["CHANAS_TIMING_CORES"].split(",")})


@contextmanager
def _tvm() -> Iterator[tuple[Any, Path]]:
    """MetaSchedule without torch, and a folder for all that it makes."""
    from chanas.devices.lean_tvm import hide_torch

    hide_torch()
    from tvm.s_tir import meta_schedule

    folder = Path(tempfile.mkdtemp(prefix="chanas-metaschedule-"))
    try:
        yield meta_schedule, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fork_builder(ms: Any, device: Any, folder: Path, deadline: float = math.inf) -> Any:
    """Build each candidate in a fork, into a folder of its own: MetaSchedule removes the folder afterwards. After the
    deadline (of `time.monotonic`) it raises, which ends tuning."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from chanas.compiler.cpu.build import build_function

    def compile_candidate(module: Any, path: Path) -> None:
        plain = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
        build_function(plain["main"], device, path)

    def build_one(given: Any) -> Any:
        path = Path(tempfile.mkdtemp(dir=folder)) / "candidate.so"
        error = in_fork(functools.partial(compile_candidate, given.mod, path), BUILD_TIMEOUT_S)
        return ms.builder.BuilderResult(None if error else str(path), error)

    @derived_object
    class Builder(ms.builder.PyBuilder):  # type: ignore[misc]
        def build(self, build_inputs: list[Any]) -> list[Any]:
            if time.monotonic() > deadline:
                raise TimeoutError("the time is over")
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                return list(pool.map(build_one, build_inputs))

    return Builder()


def _runner(ms: Any) -> Any:
    return ms.runner.LocalRunner(
        timeout_sec=RUN_TIMEOUT_S,
        evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=10),
        initializer=_pin_to_timing_cores,
    )


def _callbacks(ms: Any, note: Callable[[float | None], None]) -> list[Any]:
    """MetaSchedule's own, after one that notes the seconds of each trial (None: it failed)."""
    from tvm.ir.utils import derived_object

    @derived_object
    class Note(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, task_scheduler: Any, task_id: int, candidates: Any, built: Any, ran: Any) -> None:
            for result in ran:
                failed = result.error_msg is not None
                note(None if failed else sum(float(s) for s in result.run_secs) / len(result.run_secs))

    own = ms.measure_callback
    return [Note(), own.AddToDatabase(), own.UpdateCostModel(), own.RemoveBuildArtifact()]


def _cost_model() -> str:
    return "random" if importlib.util.find_spec("xgboost") is None else "xgb"


def tune_operator(
    workload: dict[str, Any], target: dict[str, Any], num_trials: int, seed: int, library: str
) -> dict[str, Any]:
    """Tune one operator and compile the best schedule to `library`.

    Returns:
        run_s: seconds of each trial in order, as MetaSchedule measured it (None: it failed); at_s: when each was known,
        in seconds since the start; wall_s: seconds for all of it.
    """
    start = time.perf_counter()
    run_s: list[float | None] = []
    at_s: list[float] = []

    def note(seconds: float | None) -> None:
        run_s.append(seconds)
        at_s.append(time.perf_counter() - start)

    with _tvm() as (ms, folder):
        from tvm import te

        from chanas.compiler.backends import schedule_space
        from chanas.compiler.cpu.build import build_function
        from chanas.compiler.cpu.families import operator_arguments
        from chanas.core.target import HardwareTarget
        from chanas.operators.workload import Workload

        device = HardwareTarget.from_json(target)
        goal = device.tvm_target()
        operator = Workload.from_json(workload)
        arguments = operator_arguments(operator, schedule_space(operator, device).middle, device)
        function = te.create_prim_func(list(arguments)).with_attr("global_symbol", "main")
        database = ms.tune_tir(
            function,
            target=goal,
            work_dir=str(folder / "database"),
            max_trials_global=num_trials,
            num_trials_per_iter=min(TRIALS_PER_ROUND, num_trials),
            builder=_fork_builder(ms, device, folder),
            runner=_runner(ms),
            cost_model=_cost_model(),
            measure_callbacks=_callbacks(ms, note),
            num_tuning_cores=1,
            seed=seed + 1,
        )
        schedule = ms.tir_integration.compile_tir(database, function, goal)
        if schedule is not None:
            build_function(schedule.mod["main"], device, Path(library))
    return {"run_s": run_s, "at_s": at_s, "wall_s": time.perf_counter() - start, "built": schedule is not None}


def tune_network(onnx: str, target: dict[str, Any], seconds: float, seed: int, library: str) -> dict[str, Any]:
    """Tune a network for so many seconds and compile it, with the best schedules that were found, to `library`. Tasks
    without any are compiled as they are: TVM has no schedules of its own for a CPU.

    What is imported and prepared before tuning does not count, nor compiling afterwards; the round that is under way
    when the time is over is lost.

    Returns:
        trials, failed_trials, tasks (different operators), untuned_tasks (those without a schedule), tuning_s, and
        which cost_model was there.
    """
    run_s: list[float | None] = []
    with _tvm() as (ms, folder):
        import tvm
        import tvm.s_tir.tensor_intrin  # takes many seconds, once
        from tvm.relax import transform

        from chanas.compiler.libraries import export
        from chanas.core.target import HardwareTarget

        device = HardwareTarget.from_json(target)
        goal = device.tvm_target()
        module = _prepared(onnx, goal)
        tasks = ms.relax_integration.extract_tasks(module, goal)
        database = ms.database.JSONDatabase(work_dir=str(folder))
        scheduler = ms.task_scheduler.GradientBased()
        start = time.monotonic()
        try:
            ms.relax_integration.tune_relax(
                module,
                {},
                goal,
                str(folder),
                NO_LIMIT,
                num_trials_per_iter=trials_per_round(seconds, len(tasks)),
                builder=_fork_builder(ms, device, folder, start + seconds),
                runner=_runner(ms),
                database=database,
                cost_model=_cost_model(),
                measure_callbacks=_callbacks(ms, run_s.append),
                task_scheduler=scheduler,
                seed=seed + 1,
            )
        except Exception:  # of another kind than the builder's by the time it is here
            if time.monotonic() < start + seconds:
                raise
        for i in range(len(scheduler.tasks_)):
            scheduler.touch_task(i)  # measured, but not yet in the database
        tuning_s = time.monotonic() - start
        untuned = [t for t in tasks if database.query_tuning_record(t.dispatched[0], goal, t.task_name) is None]
        with goal, database, tvm.transform.PassContext(opt_level=3):
            passes = [
                transform.MetaScheduleApplyDatabase(),
                transform.SplitLayoutRewritePreproc(),
                transform.FoldConstant(),
            ]
            export(tvm.compile(tvm.transform.Sequential(passes)(module), goal), Path(library), device)
    return {
        "trials": len(run_s),
        "failed_trials": run_s.count(None),
        "tasks": len(tasks),
        "untuned_tasks": len(untuned),
        "tuning_s": tuning_s,
        "cost_model": _cost_model(),
    }


def _prepared(onnx: str, goal: Any) -> Any:
    """The network as `static_shape_tuning` of `tvm.relax.pipeline` prepares it with `cpu_weight_prepack`."""
    import onnx as format
    import tvm
    from tvm import relax
    from tvm.relax import transform
    from tvm.relax.frontend.onnx import from_onnx

    passes = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.ConvertToDataflow(),
        relax.get_pipeline("zero"),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    with goal:
        return tvm.transform.Sequential(passes)(from_onnx(format.load(onnx), keep_params_in_input=False))


KINDS: dict[str, Callable[..., dict[str, Any]]] = {"operator": tune_operator, "network": tune_network}


def main() -> None:
    """Answer one request."""
    os.environ["CHANAS_TIMING_CORES"] = sys.argv[1]
    os.sched_setaffinity(0, {int(core) for core in sys.argv[2].split(",")})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    try:
        answer: dict[str, Any] = {"result": KINDS[request.pop("kind")](**request)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
