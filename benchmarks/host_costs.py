"""What the machine that builds has to do for each device, beside compiling: the figures of docs/scaling.md.

    python benchmarks/host_costs.py [--quick] [--seed 0]

Nothing here times a kernel. Tuning is played on invented seconds (what a search costs does not depend on them),
candidates are compiled to see how large they are, and networks of `mbv3` are proven as finalists are. Seconds are the
processor's, so that other work on the machine matters little.

Figures: tuner_ms_per_trial (choosing points and learning from them, one thread, with the records of a sub-space's
other operators), batches_stored_per_s (batches of four records, one transaction each), candidate_kbytes and case_kbytes
(median of what a device is sent: a compiled operator, and inputs, weights and PyTorch's answer once for each operator),
and proof_s_per_network (compiling a whole network, comparing and timing it, all cores together).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import Figure, finish

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target

if TYPE_CHECKING:
    from chanas.operators.workload import Workload

TABLE = Path(__file__).resolve().parents[1] / "chanas" / "luts" / "mbv3-amd-zen4-cpu.json"
SUB_SPACE, NUM_CLASSES, TRIALS = "r224-w1", 1000, 16


def operators_of(sub_space: str, num: int | None) -> list[Workload]:
    """The operators of a sub-space of `mbv3`; `num` of them, evenly spaced, when it is given."""
    from chanas.operators.steps import block_workloads

    space = SearchSpace.load("mbv3")
    (chosen,) = (s for s in space.sub_spaces if s.key == sub_space)
    found = list(dict.fromkeys(w for b in space.all_blocks(NUM_CLASSES, (chosen,)) for w in block_workloads(b)))
    return found if num is None else [found[i] for i in np.linspace(0, len(found) - 1, num).astype(np.int64)]


def invented_s(workload: Workload, point: Sequence[int]) -> float:
    """Between 1 and 2 µs, the same whenever it is asked."""
    return 1e-6 * (1.0 + zlib.crc32(json.dumps([workload.key, list(point)]).encode()) / 2**32)


def tuner_ms_per_trial(workloads: Sequence[Workload], target: HardwareTarget, seed: int) -> float:
    """Milliseconds of this thread for each trial, over all operators one after the other."""
    from chanas.compiler.backends import schedule_space
    from chanas.prescheduler.records.store import TuningRecord
    from chanas.prescheduler.tuning.tuner import Trials
    from chanas.prescheduler.tuning.tuners import Tuners

    tuners = Tuners("gp", seed=seed)
    num, start = 0, time.thread_time()
    for workload in workloads:
        space = schedule_space(workload, target)
        trials = Trials(space, tuners.make(space, [], target), TRIALS)
        while points := trials.ask(4):
            num += len(points)
            trials.tell([TuningRecord(p, invented_s(workload, p), 1e-9) for p in points])
    return 1e3 * (time.thread_time() - start) / num


def batches_stored_per_s(target: HardwareTarget, folder: Path, num: int) -> float:
    """Batches of four records in a file of their own."""
    from chanas.prescheduler.records.store import RecordStore, TuningRecord

    store = RecordStore(folder / "records.sqlite", target)
    start = time.process_time()
    for number in range(num):
        store.add(f"operator-{number}", [TuningRecord((number, i), 1e-6, 1e-9, code="0" * 32) for i in range(4)])
    seconds = time.process_time() - start
    store.close()
    return num / seconds


def kbytes(workloads: Sequence[Workload], target: HardwareTarget, folder: Path, seed: int) -> tuple[float, float]:
    """Median kilobytes of a compiled random point of each operator, and of its case."""
    from chanas.compiler.backends import schedule_space
    from chanas.compiler.cases import operator_case
    from chanas.measuring.fleet import WorkerPool
    from chanas.measuring.messages import Build, OperatorAt

    rng, libraries, cases = np.random.default_rng(seed), [], []
    with WorkerPool(target) as pool:
        for number, workload in enumerate(workloads):
            library, case = folder / f"{number}.so", folder / f"{number}.npz"
            (point,) = schedule_space(workload, target).sample(1, rng)
            build = Build(target=target, what=OperatorAt(workload, point), path=library)
            answer = pool.build(build, 60.0).result()
            if answer.error is not None:
                raise SystemExit(f"host_costs: error: {workload.key} was not built: {answer.error}")
            operator_case(workload, target).save(case)
            libraries.append(library.stat().st_size / 1e3)
            cases.append(case.stat().st_size / 1e3)
    return statistics.median(libraries), statistics.median(cases)


def processor_s() -> float:
    """Processor seconds of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def proof_s_per_network(target: HardwareTarget, folder: Path, num: int, seed: int) -> float:
    """Processor seconds for each of `num` random networks, of this process and its workers."""
    from random_networks import random_architectures, random_job

    from chanas.core.latency import LatencyLUT
    from chanas.prescheduler.tables.networks import compile_networks

    space, table = SearchSpace.load("mbv3"), LatencyLUT.load(TABLE)
    drawn = random_architectures(space, num, seed)
    jobs = [random_job(space, a, NUM_CLASSES, folder / f"network{i}.so", seed) for i, a in enumerate(drawn)]
    start = processor_s()
    outcomes = compile_networks(table, target, jobs, progress=False)
    seconds = processor_s() - start
    for outcome in outcomes:
        if outcome.seconds is None:
            raise SystemExit(f"host_costs: error: a network failed: {outcome.error}")
    return seconds / num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few operators, no network, no result file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    quick, seed, target = options.quick, options.seed, load_target("cpu")
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as name:
        folder = Path(name)
        tuned = operators_of(SUB_SPACE, 4 if quick else 40)
        per_trial = tuner_ms_per_trial(tuned, target, seed)
        stored = batches_stored_per_s(target, folder, 100 if quick else 2000)
        built = operators_of(SUB_SPACE, 2 if quick else 12)
        candidate, case = kbytes(built, target, folder, seed)
        proof = None if quick else proof_s_per_network(target, folder, 2, seed)
    figures = {
        "tuner_ms_per_trial": Figure(per_trial),
        "batches_stored_per_s": Figure(stored),
        "candidate_kbytes": Figure(candidate),
        "case_kbytes": Figure(case),
        "proof_s_per_network": Figure(proof),
    }
    extra = {"seed": seed, "sub_space": SUB_SPACE, "trials": TRIALS, "tuned": len(tuned), "built": len(built)}
    finish("host_costs", figures, quick, extra)


if __name__ == "__main__":
    main()
