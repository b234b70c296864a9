"""What is handed over: what a bundle says of the network that won, and the test of the very module in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.arch import Architecture, SearchSpace
from chanas.errors import MeasureError
from chanas.latency import LatencyLUT
from chanas.target import tvm_version

if TYPE_CHECKING:
    from chanas.codesign import CoDesign
    from chanas.prescheduler.measure import Outcome
    from chanas.search.cosearch import SearchOutcome
    from chanas.search.proof import ProofRecord
    from chanas.supernet.evaluate import SupernetEvaluator

# Share of images that a compiled module may classify otherwise than PyTorch in float32: rounding decides close races.
_MAX_DISAGREEMENT = {"float32": 0.0, "bfloat16": 0.02}


def proof_record(architecture: Architecture, outcome: Outcome, top1: float) -> ProofRecord:
    """What compiling and measuring a finalist came to, and its top-1 in [0, 1] (NaN: nobody knows)."""
    from chanas.search.proof import ProofRecord

    if outcome.seconds is None:
        return ProofRecord(architecture, error=outcome.error)
    return ProofRecord(architecture, outcome.seconds, outcome.spread_s or 0.0, top1, outcome.max_error or 0.0)


def winner_document(
    outcome: SearchOutcome, space: SearchSpace, num_classes: int, lut: LatencyLUT, budget_s: float
) -> dict[str, Any]:
    """What every bundle says of its network, wherever the accuracies came from."""
    winner = outcome.architecture
    blocks = winner.blocks(space, num_classes)
    return {
        "architecture": {"key": winner.key, "genome": list(outcome.genome)},
        "space": space.to_json(),
        "target": lut.header.target.to_json(),
        "schedules": [
            {"block": b.key, "operators": [[k, list(p)] for k, p in lut.rows[b.key].schedules]} for b in blocks
        ],
        "blocks": [{"key": b.key, "latency_s": lut.block_s(b)} for b in blocks],
        "constraints": {"latency_s": budget_s},
        "predicted": {"latency_s": outcome.predicted_latency_s, "top1": outcome.predicted_top1},
        "measured": {"latency_s": outcome.proof.measured_latency_s, "spread_s": outcome.proof.spread_s},
        "num_macs": sum(b.num_macs for b in blocks),
        "num_params": sum(b.num_params for b in blocks),
        "versions": versions(),
    }


def tested(bundle: CoDesign, supernet: SupernetEvaluator) -> dict[str, Any]:
    """Accuracy of the compiled module on test, its agreement with PyTorch on every image, and PyTorch's own speed."""
    import torch

    from chanas.codesign import benchmark

    images, labels = supernet.images("test", bundle.architecture.resolution)
    network = bundle.torch_module()
    compiled = bundle.predict(images)
    with torch.inference_mode():
        expected = np.concatenate([network(torch.from_numpy(part)).numpy() for part in np.array_split(images, 8)])
    disagreements = int((compiled.argmax(1) != expected.argmax(1)).sum())
    if disagreements > _MAX_DISAGREEMENT[bundle.target.dtype] * len(images):
        raise MeasureError(
            f"the compiled module classifies {disagreements} of {len(images)} test images otherwise than PyTorch; "
            "no bundle was written"
        )
    eager = next(row for row in benchmark(bundle, with_compile=False, rounds=15) if row.name == "PyTorch eager")
    return {
        "top1_test": float((compiled.argmax(1) == labels).mean()),
        "num_test_images": len(images),
        "num_disagreements": disagreements,
        "max_logit_difference": float(np.abs(compiled - expected).max()),
        "pytorch_eager_latency_s": eager.median_s,
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
