"""The contents of a bundle that is handed over: its description of the winning network, and the test of the very module
in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.core.arch import Architecture, BlockConfig, SearchSpace
from chanas.core.genome import encode
from chanas.core.latency import LatencyLUT
from chanas.core.target import tvm_version
from chanas.core.task import NO_LIMITS, Limits
from chanas.devices.gpu_use import gpu_of
from chanas.errors import MeasureError
from chanas.files.writing import file_digest
from chanas.operators.memory import ActivationMemory

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.prescheduler.measuring.outcomes import Outcome
    from chanas.search.cosearch import SearchOutcome
    from chanas.search.proof import ProofRecord
    from chanas.supernet.training.evaluate import SupernetEvaluator

# Share of images that a compiled module may classify otherwise than PyTorch in float32: rounding decides close races.
_MAX_DISAGREEMENT = {"float32": 0.0, "bfloat16": 0.02, "float16": 0.02, "tf32": 0.02}


def proof_record(architecture: Architecture, outcomes: Mapping[str, Outcome], top1: float) -> ProofRecord:
    """Record a finalist's compilation and measurement, by target, and its top-1 in [0, 1] (NaN: unknown)."""
    from chanas.search.proof import ProofRecord, Timing

    timings, max_error = [], 0.0
    for name, outcome in outcomes.items():
        if outcome.seconds is None:
            where = f"on {name}: " if len(outcomes) > 1 else ""
            return ProofRecord(architecture, error=f"{where}{outcome.error}")
        timings.append(Timing(name, outcome.seconds, outcome.spread_s or 0.0))
        max_error = max(max_error, outcome.max_error or 0.0)
    first, *further = timings
    return ProofRecord(architecture, first.latency_s, first.spread_s, top1, max_error, further=tuple(further))


def winner_document(
    outcome: SearchOutcome,
    space: SearchSpace,
    num_classes: int,
    lut: LatencyLUT,
    budget_s: float,
    limits: Limits = NO_LIMITS,
) -> dict[str, Any]:
    """Describe the winning network in its bundle, wherever the accuracies came from.

    `limits` are the constraints besides latency; those that are None were not asked for.
    """
    winner = outcome.architecture
    blocks = winner.blocks(space, num_classes)
    target = lut.header.target
    memory = ActivationMemory(space, num_classes, target)
    return {
        "architecture": {"key": winner.key, "genome": list(outcome.genome)},
        "space": space.to_json(),
        "target": target.to_json(),
        **_block_facts(blocks, lut),
        "constraints": {"latency_s": budget_s} | {k: v for k, v in limits.to_json().items() if v is not None},
        "predicted": {"latency_s": outcome.predicted_latency_s, "top1": outcome.predicted_top1},
        "measured": {"latency_s": outcome.proof.measured_latency_s, "spread_s": outcome.proof.spread_s},
        "num_macs": sum(b.num_macs for b in blocks),
        "num_params": sum(b.num_params for b in blocks),
        "peak_memory_bytes": int(memory.of(encode(space, [winner]))[0]),
        "versions": versions(),
    }


def _block_facts(blocks: Sequence[BlockConfig], lut: LatencyLUT) -> dict[str, Any]:
    """Schedules and seconds of a network's blocks, from a target's table."""
    return {
        "schedules": [
            {"block": b.key, "operators": [[k, list(p)] for k, p in lut.rows[b.key].schedules]} for b in blocks
        ],
        "blocks": [{"key": b.key, "latency_s": lut.block_s(b)} for b in blocks],
    }


def further_documents(
    outcome: SearchOutcome, space: SearchSpace, num_classes: int, tables: Sequence[tuple[LatencyLUT, Path]]
) -> list[dict[str, Any]]:
    """Describe each target of a bundle besides the first; `tables` and their files in the order of the outcome."""
    blocks = outcome.architecture.blocks(space, num_classes)
    return [
        {
            "target": lut.header.target.to_json(),
            **_block_facts(blocks, lut),
            "constraints": {"latency_s": found.budget_s},
            "predicted": {"latency_s": found.predicted_s},
            "measured": {"latency_s": found.measured_s, "spread_s": found.spread_s},
            "hashes": {"lut": file_digest(path)},
        }
        for found, (lut, path) in zip(outcome.further, tables, strict=True)
    ]


def tested(bundle: CoDesign, supernet: SupernetEvaluator) -> dict[str, Any]:
    """Accuracy of the compiled module on test, its agreement with PyTorch on every image, and PyTorch's own speed.

    Of a module that is not for this machine, PyTorch's accuracy alone: on its device it was compared with PyTorch when
    it was measured.
    """
    from chanas.bundle.benchmark import benchmark
    from chanas.prescheduler.measuring.local.locks import device_lock

    if not bundle.runs_here:
        num = len(supernet.images("test", bundle.architecture.resolution)[0])
        return {"top1_test": supernet.top1(bundle.architecture, "test"), "num_test_images": num}
    agreement = agreed(bundle, supernet)
    with device_lock(gpu=gpu_of(bundle.target)):
        eager = next(
            row for row in benchmark(bundle, with_compile=False, rounds=15, shared=None) if row.name == "PyTorch eager"
        )
    return {**agreement, "pytorch_eager_latency_s": eager.median_s}


def agreed(bundle: CoDesign, supernet: SupernetEvaluator) -> dict[str, Any]:
    """Accuracy of the compiled module on test, and its agreement with PyTorch on every image; of a module that is not
    for this machine, nothing.

    Raises:
        MeasureError: it classifies too many images otherwise than PyTorch.
    """
    import torch

    if not bundle.runs_here:
        return {}
    images, labels = supernet.images("test", bundle.architecture.resolution)
    network = bundle.torch_module()
    compiled = bundle.predict(images)
    with torch.inference_mode():
        expected = np.concatenate([network(torch.from_numpy(part)).numpy() for part in np.array_split(images, 8)])
    disagreements = int((compiled.argmax(1) != expected.argmax(1)).sum())
    if disagreements > _MAX_DISAGREEMENT[bundle.target.dtype] * len(images):
        raise MeasureError(
            f"the module compiled for {bundle.target.name} classifies {disagreements} of {len(images)} test images "
            "otherwise than PyTorch; no bundle was written"
        )
    return {
        "top1_test": float((compiled.argmax(1) == labels).mean()),
        "num_test_images": len(images),
        "num_disagreements": disagreements,
        "max_logit_difference": float(np.abs(compiled - expected).max()),
    }


def versions() -> dict[str, str]:
    """Versions of everything that figures depend on."""
    import platform
    from importlib import metadata

    import chanas

    packages = ("torch", "numpy", "scikit-learn")
    return {
        "chanas": chanas.__version__,
        "tvm": tvm_version(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
