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
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.cpu.blocks import schedule_packed_operator
from chanas.compiler.cpu.families import schedule_operator
from chanas.compiler.cuda.families import schedule_gpu_operator
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget, gpu_in_dtype
from chanas.devices.target_files import arch_target
from chanas.errors import ScheduleError
from chanas.network.folding import pack_operator
from chanas.operators.keys import workload_of_key
from chanas.operators.workload import Workload
from chanas.prescheduler.records.schema import migrate
from chanas.prescheduler.records.store import TuningRecord
from chanas.prescheduler.tuning.cost_model.models import cost_model
from chanas.prescheduler.tuning.default_points import ranked_points
from chanas.prescheduler.tuning.take_over import take_over
from chanas.prescheduler.tuning.tuner import OperatorTuner

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
                text = schedule_gpu_operator(workload, point, target).script()
                yield f"program {name} {workload.key} {list(point)}", digest(text)


def weights() -> Digests:
    """Packed weights and biases."""
    for name, target, workload in cases():
        if workload.has_weights:
            rng, axes = np.random.default_rng(0), workload.axes
            shape = (workload.out_channels, workload.channels_per_group, axes[0].kernel, axes[1].kernel)
            weight, bias = (rng.standard_normal(s, dtype=np.float32) for s in (shape, shape[:1]))
            packed = pack_operator(workload, weight, bias, target.vector_lanes)
            yield f"weights {name} {workload.key}", digest([(p.shape, p.dtype, p.tobytes()) for p in packed])


def seconds_of(workload: Workload, point: tuple[int, ...]) -> float:
    """Invented seconds of a point."""
    number = int.from_bytes(hashlib.sha256(f"{workload.key} {point}".encode()).digest()[:4], "little")
    return 1e-4 * (1.0 + sum(abs(3 - int(np.log2(p))) for p in point if p > 0) + number / 2**32)


def proposals() -> Digests:
    """What tuners ask for, one after the other, with each cost model."""
    chosen = [c for i, c in enumerate(cases()) if i % 40 == 0][:12]
    for kind in ("gp", "random"):
        for seed in range(3):
            models: dict[str, Any] = {}
            for name, target, workload in chosen:
                model = models.setdefault(f"{workload.op} {name}", cost_model(kind, target, seed))
                space = schedule_space(workload, target)
                tuner, asked = OperatorTuner(space, model, 16, [], seed), []
                while points := tuner.propose():
                    asked += points
                    tuner.observe([TuningRecord(p, seconds_of(workload, p), 1e-6) for p in points])
                yield f"proposals {kind} {seed} {name} {workload.key}", digest((asked, tuner.expected_improvement()))


def taken_over() -> Digests:
    """Schedules of operators that were not tuned, from those of a table that were."""
    for path in TABLES:
        lut = LatencyLUT.load(path)
        known = {workload_of_key(k): p for row in lut.rows.values() for k, p in row.schedules}
        names = sorted(known, key=lambda w: w.key)
        tuned = {w: [TuningRecord(known[w], seconds_of(w, known[w]))] for w in names[::2]}
        for workload in names[1::2][::4]:
            found = take_over(workload, tuned, lut.header.target)
            yield f"taken over {path.stem} {workload.key}", digest(found)


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
    from chanas.models.module import program_module
    from chanas.models.reading.reader import read_graph
    from chanas.models.sources.torch_models import opened_program

    target = LatencyLUT.load(TABLES[-1]).header.target
    for name in NETWORKS:
        torch.manual_seed(0)
        exported = torch.export.export(torchvision.models.get_model(name).eval(), (torch.zeros(1, 3, 224, 224),))
        opened = opened_program(name, exported, {})
        program = lower(simplify(read_graph(opened.proto, opened.inputs)), target)
        chosen = {o.choices: (o.choices[0], ranked_points(o.choices[0], target, 1)[0]) for o in program.tuned}
        made = program_module(program, chosen, target)
        yield f"network {name}", digest((made.module.script(), [(p.shape, p.tobytes()) for p in made.parameters]))


PARTS = (spaces, programs, weights, proposals, taken_over, files)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Digests of what a change of the code's shape leaves as it is.")
    parser.add_argument("do", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--networks", action="store_true", help="finished networks of torchvision, too")
    args = parser.parse_args(arguments)
    found: dict[str, str] = {}
    for part in (*PARTS, *((networks,) if args.networks else ())):
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
