"""Digests of what a change of the code's shape leaves as it is: spaces and points, programs, packed weights, proposals
of tuners, schedules taken over, tables, and the schema of records.

    python tools/golden.py write GOLDEN.json      # before
    python tools/golden.py compare GOLDEN.json    # after: a line for each that differs, exit code 1 if any does

They are the same on any machine: devices are those of the shipped tables, with vectors of other lengths, and GPUs that
need not be there. Numbers of PyTorch are in none of them. With `--networks`, programs of finished networks too.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_operator, schedule_space
from chanas.compiler.cpu.blocks import schedule_packed_operator
from chanas.compiler.cpu.module import program_module
from chanas.compiler.program import Program
from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, sample
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget, gpu_in_dtype
from chanas.devices.target_files import arch_target
from chanas.errors import ScheduleError
from chanas.operators.keys import workload_of_key
from chanas.operators.layout import layout_of
from chanas.operators.steps import block_workloads, device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.ideas import ideas, ranked_points
from chanas.prescheduler.records.schema import migrate
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tables.transfer.schedules import choose_untried, known_schedules
from chanas.prescheduler.tuning.cost_model.history import History
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.cost_model.pretrained import PretrainedModel
from chanas.prescheduler.tuning.evolution import Evolution
from chanas.prescheduler.tuning.tuner import Trials
from chanas.prescheduler.tuning.warm_start import WarmStart

Digests = Iterator[tuple[str, str]]
ROOT = Path(__file__).resolve().parents[1]
TABLES = sorted((ROOT / "luts").glob("*.json"))
GPUS = ("sm_75", "sm_80", "sm_90")
NETWORKS = ("squeezenet1_1", "shufflenet_v2_x1_0", "mobilenet_v3_small", "densenet121", "regnet_y_400mf", "swin_t")
GENERAL = (
    "blockconv-14x28px-32x64-k3x5s1d2x1g2-relu-float32",
    "blockconv-7px-20x40-k3s2-relu-res-float32-b2",
    "groupconv-14px-24x24-k3s1g3-relu-float32",
    "winograd-14px-32x64-k3s1-relu-sum-float32",
    "winograd2-14px-32x64-k3s1-hswish-res-float32",
    "upconv-14px-32x64-k3s2-relu-float32",
    "pointwise-14px-32x64-k1s1-swish-scaled-res-float32",
    "pointwise-14px-96x128-k1s1-relu-scaled.relu-float32",
    "pointwise-14x1px-32x72-k1s1-gelu-float32",
    "depthwise-14px-32x64-k5s2-relu6-float32",
    "pool-7x5px-40x40-k1s1-none-float32",
)
_NUM_POINTS, _EVERY = 3, 6
"""Points of an operator whose programs are compared, and of how many operators of a table one is."""


def digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def cases() -> Iterator[tuple[str, HardwareTarget, Workload]]:
    """Operators of processors with their devices: those of the tables, and some that are more general."""
    for path in TABLES:
        lut = LatencyLUT.load(path)
        target = lut.header.target
        keys = sorted({key for row in lut.rows.values() for key, _ in row.schedules})
        for key in keys:
            yield path.stem, target, workload_of_key(key)
        if target.dtype != "float32":
            continue
        for lanes, registers in ((target.vector_lanes, target.num_vector_registers), (8, 16), (4, 32)):
            device = dataclasses.replace(target, vector_lanes=lanes, num_vector_registers=registers)
            for key in GENERAL:
                workload = workload_of_key(key)
                try:
                    schedule_space(workload, device)
                except ScheduleError:  # groups that fill these vectors
                    continue
                yield f"{path.stem} with {lanes} lanes", device, workload


def gpu_cases() -> Iterator[tuple[str, HardwareTarget, Workload]]:
    """Operators of a table on GPUs, in each dtype that they have, for one image and several."""
    lut = LatencyLUT.load(TABLES[-1])
    keys = sorted({key for row in lut.rows.values() for key, _ in row.schedules})[::_EVERY]
    for name in GPUS:
        for dtype in ("f32", "f16", *(("tf32",) if name != "sm_75" else ())):
            target = gpu_in_dtype(arch_target(name), dtype)
            for key in keys:
                for batch in (1, 32):
                    workload = dataclasses.replace(workload_of_key(key), dtype=target.dtype, batch=batch)
                    try:
                        schedule_space(workload, target)
                    except ScheduleError:  # no kernels of it in this dtype
                        continue
                    yield name, target, workload


def some_points(target: HardwareTarget, workload: Workload) -> list[Any]:
    space = schedule_space(workload, target)
    return [space.middle, *space.sample(_NUM_POINTS - 1, np.random.default_rng(0))]


def spaces() -> Digests:
    """All points of processors, and what they are to their schedules; some of GPUs."""
    for name, target, workload in cases():
        space = schedule_space(workload, target)
        yield f"space {name} {workload.key}", digest([(p, space.decode(p)) for p in space.points])
        yield f"ranked {name} {workload.key}", digest(ranked_points(workload, target, 4))
    for name, target, workload in gpu_cases():
        space = schedule_space(workload, target)
        points = space.sample(64, np.random.default_rng(0))
        yield f"space {name} {workload.key}", digest([(p, space.decode(p)) for p in points])


def programs() -> Digests:
    """TIR of operators alone and as networks have them."""
    for i, (name, target, workload) in enumerate(cases()):
        if i % _EVERY and workload.key not in GENERAL:
            continue
        for point in some_points(target, workload):
            texts = [schedule_operator(workload, point, target).script()]
            if workload.dtype == "float32":
                texts.append(schedule_packed_operator(workload, point, target).script())
            yield f"program {name} {workload.key} {list(point)}", digest(texts)
    for i, (name, target, workload) in enumerate(gpu_cases()):
        if i % _EVERY == 0:
            for point in some_points(target, workload):
                text = schedule_operator(workload, point, target).script()
                yield f"program {name} {workload.key} {list(point)}", digest(text)


def weights() -> Digests:
    """Packed weights and biases."""
    for name, target, workload in cases():
        if workload.has_weights:
            rng, axes = np.random.default_rng(0), workload.axes
            shape = (workload.out_channels, workload.channels_per_group, axes[0].kernel, axes[1].kernel)
            weight, bias = (rng.standard_normal(s, dtype=np.float32) for s in (shape, shape[:1]))
            packed = layout_of(target).pack_parameters(workload, weight, bias)
            yield f"weights {name} {workload.key}", digest([(p.shape, p.dtype, p.tobytes()) for p in packed])


def seconds_of(workload: Workload, point: tuple[int, ...]) -> float:
    """Invented seconds of a point."""
    number = int.from_bytes(hashlib.sha256(f"{workload.key} {point}".encode()).digest()[:4], "little")
    return 1e-4 * (1.0 + sum(abs(3 - int(np.log2(p))) for p in point if p > 0) + number / 2**32)


class Taught:
    """A trained model that reads a sequence as its weighted sum; with `sign` -1 it is wrong."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def log_seconds(self, rows: Any) -> Any:
        weights = np.random.default_rng(0).standard_normal(rows.values.shape[1])
        return self.sign * 0.01 * np.bincount(rows.owners, rows.values @ weights, len(rows))


def trace(trials: Trials, workload: Workload) -> str:
    """What a tuner asks for until its trials are over, and what it then expects; one point in nine fails."""
    asked = []
    while points := trials.ask(4):
        asked += points
        seconds = [None if hash(p) % 9 == 0 else seconds_of(workload, p) for p in points]
        trials.tell([TuningRecord(p, s, 1e-6) for p, s in zip(points, seconds, strict=True)])
    tau = None if trials.prior is None else trials.prior.tau
    return digest((asked, trials.tuner.promise(), trials.tuner.promise(1e-4), tau))


def proposals() -> Digests:
    """What tuners ask for, one after the other, with each cost model, with another device's records and without."""
    chosen = [c for i, c in enumerate(cases()) if i % 40 == 0][:12]
    for seed in range(3):
        models: dict[str, Any] = {}
        for name, target, workload in chosen:
            model = models.setdefault(f"{workload.op} {name}", cost_model("gp", target, seed))
            space = schedule_space(workload, target)
            trials, asked = Trials(space, Evolution(space, model, [], seed), 16), []
            while points := trials.ask(4):
                asked += points
                trials.tell([TuningRecord(p, seconds_of(workload, p), 1e-6) for p in points])
            yield f"proposals gp {seed} {name} {workload.key}", digest((asked, trials.tuner.promise()))
        for kind, sign, elsewhere in (
            ("gp with records", 1, "same"),
            ("gp with wrong records", -1, "same"),
            ("gp with mapped records", 1, "other vectors"),
            ("trained", 1, ""),
            ("trained and wrong", -1, ""),
            ("trained with records", 1, "same"),
        ):
            models = {}
            starts = {name: warm_start(target, chosen, sign, elsewhere) for name, target, _ in chosen}
            for name, target, workload in chosen:
                of_family = f"{workload.op} {name}"
                if of_family not in models:
                    is_taught = kind.startswith("trained")
                    known = kind.partition(" ")[0]
                    models[of_family] = (
                        PretrainedModel(History(target), Taught(sign)) if is_taught else cost_model(known, target, seed)
                    )
                space = schedule_space(workload, target)
                prior = starts[name].prior(space) if elsewhere else None
                trials = Trials(space, Evolution(space, models[of_family], [], seed, prior), 20)
                yield f"proposals {kind} {seed} {name} {workload.key}", trace(trials, workload)


def warm_start(target: HardwareTarget, some: Sequence[Any], sign: int, elsewhere: str) -> WarmStart:
    """Records of operators on a device with another number of threads, or with other vectors, too."""
    its = dataclasses.replace(target, name="there", num_threads=target.num_threads % 2 + 1)
    if elsewhere == "other vectors":
        its = dataclasses.replace(its, vector_lanes=4, num_vector_registers=32, dtype="float32")
    source = Source(f"{its.fingerprint}/{its.num_threads}t", its, "0.27.0", backend_of(target).space_version)
    records: dict[str, tuple[TuningRecord, ...]] = {}
    start = WarmStart(source, Path(), target, records)
    for workload in {start.its(w) for _, t, w in some if t == target}:
        points = schedule_space(workload, its).sample(12, np.random.default_rng(1))
        seconds = [seconds_of(workload, p) ** sign for p in points]
        records[workload.key] = tuple(sorted(map(TuningRecord, points, seconds), key=lambda r: r.seconds or 0.0))
    return start


def taken_over() -> Digests:
    """Schedules of operators that were not tuned: from those of a table that were, from another device's records, from
    another device's table."""
    for path in TABLES:
        lut = LatencyLUT.load(path)
        target = lut.header.target
        known = {workload_of_key(k): p for row in lut.rows.values() for k, p in row.schedules}
        names = sorted(known, key=lambda w: w.key)
        tuned = {w: [TuningRecord(known[w], seconds_of(w, known[w]))] for w in names[::2]}
        for workload in names[1::2][::4]:
            found = list(ideas(workload, target, tuned))
            yield f"taken over {path.stem} {workload.key}", digest(found)
        for elsewhere in ("same", "other vectors"):
            start = warm_start(target, [(path.stem, target, w) for w in names[::8]], 1, elsewhere)
            for workload in names[::8]:
                found = [(i.point, i.seconds, i.origin) for i in start.ideas(workload)]
                yield f"known elsewhere {elsewhere} {path.stem} {workload.key}", digest(found)
        blocks = SearchSpace.load(lut.header.space).all_blocks(1000)[::3]
        for other, changed in (
            ("more threads", {"num_threads": 2, "name": "cpu-2t"}),
            ("fewer threads", {"num_threads": 1, "name": "cpu"}),
            ("avx2", {"vector_lanes": 8, "num_vector_registers": 16, "dtype": "float32"}),
            ("neon", {"vector_lanes": 4, "num_vector_registers": 32, "dtype": "float32"}),
            ("bfloat16", {"dtype": "bfloat16"}),
        ):
            device = dataclasses.replace(target, **changed)
            try:
                here = known_schedules(blocks, lut, device)
            except ScheduleError:
                continue
            yield f"known {other} {path.stem}", digest((sorted(here.rows.items()), list(here.suggestions.items())))
            own = {w for b in blocks for w in device_workloads(b, device)}
            mine = {w: ranked_points(w, device, 1) for w in sorted(own, key=lambda w: w.key)[::2]}
            tried = {w: [TuningRecord(p, 1e-3) for p in points] for w, points in mine.items()}
            picked = choose_untried(blocks, here, device, tried)
            yield f"untried {other} {path.stem}", digest((sorted(picked.rows.items()), list(picked.taken_over.items())))


def files() -> Digests:
    """What is stored: tables and all in them, workloads, and the schema of records."""
    for path in TABLES:
        lut = LatencyLUT.load(path)
        yield (
            f"table {path.stem}",
            digest((lut.header.to_json(), [(k, r.to_json()) for k, r in lut.rows.items()], lut.calibration)),
        )
    for key in GENERAL:
        yield f"workload {key}", digest(workload_of_key(key).to_json())
    db = sqlite3.connect(":memory:")
    migrate(db)
    yield "schema", digest(list(db.iterdump()))


def networks() -> Digests:
    """Programs of finished networks with default schedules."""
    import torch
    import torchvision

    from chanas.models.folding import simplify
    from chanas.models.lowering import lower
    from chanas.models.reading.reader import read_graph
    from chanas.models.sources.torch_models import opened_program

    target = LatencyLUT.load(TABLES[-1]).header.target
    for name in NETWORKS:
        torch.manual_seed(0)
        exported = torch.export.export(torchvision.models.get_model(name).eval(), (torch.zeros(1, 3, 224, 224),))
        opened = opened_program(name, exported, {})
        program = lower(simplify(read_graph(opened.proto, opened.inputs)), target)
        chosen = {o.key: (o.choices[0], ranked_points(o.choices[0], target, 1)[0]) for o in program.tuned}
        made = program_module(program, chosen, target)
        text = re.sub(r"elem_offset\w*", "elem_offset", made.module.script())  # which TVM numbers in any order
        yield f"network {name}", digest((text, [(p.shape, p.tobytes()) for p in made.parameters]))


def searched_networks() -> Digests:
    """Modules of searched networks as they are stored, with schedules at random."""
    space, rng = SearchSpace.load("mbv3"), np.random.default_rng(0)
    architectures = {"smallest": space.smallest, "random": decode(space, sample(space, 1, rng))[0]}
    for path in TABLES:
        target = LatencyLUT.load(path).header.target
        for name, architecture in architectures.items():
            blocks = architecture.blocks(space, 10)
            chosen = {
                block: [schedule_space(w, target).sample(1, rng)[0] for w in block_workloads(block, target.dtype)]
                for block in dict.fromkeys(blocks)
            }
            program = Program.from_blocks(blocks, [chosen[block] for block in blocks], target)
            yield f"network {name} {path.stem}", digest(program_module(program, {}, target).to_json())


PARTS = (spaces, programs, weights, proposals, taken_over, files)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Digests of what a change of the code's shape leaves as it is.")
    parser.add_argument("do", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--networks", action="store_true", help="networks, too: some of torchvision and searched ones")
    args = parser.parse_args(arguments)
    found: dict[str, str] = {}
    for part in (*PARTS, *((networks, searched_networks) if args.networks else ())):
        found |= dict(part())
        print(f"{part.__name__}: {len(found)} so far", file=sys.stderr)
    if args.do == "write":
        args.file.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        return 0
    kept = json.loads(args.file.read_text(encoding="utf-8"))
    if not args.networks:
        kept = {name: value for name, value in kept.items() if not name.startswith("network ")}
    different = [name for name in {**kept, **found} if kept.get(name) != found.get(name)]
    for name in different:
        print(f"{name}: {kept.get(name, 'not there')} -> {found.get(name, 'not there')}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
