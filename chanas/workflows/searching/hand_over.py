"""The bundle of a search's winner: its description, and the test of the very modules in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import BlockConfig
from chanas.core.genome import encode
from chanas.core.target import tvm_version
from chanas.core.task import NO_LIMITS, Limits
from chanas.files.writing import file_digest
from chanas.operators.memory import ActivationMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chanas.bundle.codesign import CoDesign
    from chanas.search.cosearch import SearchOutcome
    from chanas.search.target import SearchTarget
    from chanas.workflows.searching.sources import Prover


def hand_over(
    path: Path, outcome: SearchOutcome, prover: Prover, limits: Limits = NO_LIMITS, seed: int = 0
) -> CoDesign:
    """Write the bundle: first as it will be, to test the very modules that are handed over; then with what came out.

    Raises:
        MeasureError: a compiled module does not classify the test images as PyTorch does; no bundle is written.
    """
    from chanas.bundle.codesign import CoDesign, write_bundle

    source, winner = prover.source, outcome.architecture
    document, tensors = _document(outcome, prover, limits, seed), source.tensors(winner)
    modules = [prover.library(winner, target) for target in outcome.targets]
    draft = prover.scratch / "bundle"
    write_bundle(draft, document, tensors, modules)
    for part in document["targets"]:
        part["measured"] |= source.test(CoDesign.load(draft, part["target"]["name"]))
    write_bundle(path, document, tensors, modules)
    return CoDesign.load(path)


def _document(outcome: SearchOutcome, prover: Prover, limits: Limits, seed: int) -> dict[str, Any]:
    """Describe the winning network; limits that are None were not asked for."""
    winner, of_source = outcome.architecture, prover.source.document(outcome.winner.proof)
    space, classes = prover.source.task.space, prover.source.task.num_classes
    blocks = winner.blocks(space, classes)
    targets = []
    for number, target in enumerate(outcome.targets):
        memory = ActivationMemory(space, classes, target.lut.header.target).of(encode(space, [winner]))
        timing = outcome.winner.proof.timings[number]
        targets.append(
            {
                **_schedules(target, blocks),
                "target": target.lut.header.target.to_json(),
                "constraints": {"latency_s": target.budget_s},
                "predicted": {"latency_s": outcome.winner.predicted_s[number]},
                "measured": {"latency_s": timing.latency_s, "spread_s": timing.spread_s},
                "peak_memory_bytes": int(memory[0]),
                "seeds": {"prescheduler": target.lut.header.seed},
                "hashes": {"lut": file_digest(prover.source.run.lut(target.name))},
            }
        )
    return {
        **of_source,
        "architecture": {"key": winner.key, "genome": encode(space, [winner])[0].tolist()},
        "space": space.to_json(),
        "targets": targets,
        "constraints": {k: v for k, v in limits.to_json().items() if v is not None},
        "predicted": {"top1": outcome.winner.proposal.predicted_top1},
        "num_macs": sum(b.num_macs for b in blocks),
        "num_params": sum(b.num_params for b in blocks),
        "versions": versions(),
        "seeds": {"search": seed, **of_source["seeds"]},
        "hashes": {"search_space": space.digest, **of_source["hashes"]},
    }


def _schedules(target: SearchTarget, blocks: Sequence[BlockConfig]) -> dict[str, Any]:
    """Schedules and seconds of a network's blocks, from a target's table."""
    rows, version = target.lut.rows, target.lut.header.space_version
    return {
        **({} if version is None else {"space_version": version}),
        "schedules": [{"block": b.key, "operators": [[k, list(p)] for k, p in rows[b.key].schedules]} for b in blocks],
        "blocks": [{"key": b.key, "latency_s": target.lut.block_s(b)} for b in blocks],
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
