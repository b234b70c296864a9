"""The bundle of a search's winner: its description, and the test of the very modules in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chanas.bundle.document import WEIGHTS
from chanas.core.blocks import BlockConfig
from chanas.core.genome import encode
from chanas.core.progress import announce, named_wait
from chanas.core.target import in_several, tvm_version
from chanas.files.writing import file_digest
from chanas.operators.memory import network_bytes
from chanas.workflows.searching.agreement import TESTED
from chanas.workflows.searching.schedules import block_rows

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.files.run import RunDirectory
    from chanas.search.cosearch import SearchOutcome
    from chanas.search.target import SearchTarget
    from chanas.workflows.searching.sources import Prover


def hand_over(
    run: RunDirectory,
    outcome: SearchOutcome,
    prover: Prover,
    constraints: Mapping[str, float] | None = None,
    seed: int = 0,
    *,
    name: str | None = None,
    is_newest: bool = True,
) -> CoDesign:
    """Write the bundle: first as it will be, to test the very modules that are handed over; then with what came out.

    An earlier bundle of its name is kept under another one if it is another network.

    Args:
        constraints: what was asked for besides latencies, as bundles store it.
        name: its folder in `run.bundles`; by default what was asked for, as `default_name` says.
        is_newest: make it the run's `bundle`.

    Raises:
        MeasureError: a compiled module does not classify the test images as PyTorch does; no bundle is written.
    """
    from chanas.bundle.codesign import CoDesign, write_bundle
    from chanas.bundle.places import default_name, place_of_earlier, point_to

    source, winner = prover.source, outcome.architecture
    document, tensors = _document(outcome, prover, constraints or {}, seed), prover.tensors(winner)
    modules = [prover.library(winner, target) for target in outcome.targets]
    draft = prover.scratch / "bundle"
    write_bundle(draft, document, tensors, modules)
    with named_wait("testing the winner's module", prover.progress):
        for part in document["targets"]:
            bundle = CoDesign.load(draft, part["target"]["name"])
            part["measured"] |= source.test(bundle, _tested_before(run, bundle))
    budgets_s = {target.name: target.budget_s for target in outcome.targets}
    path = run.bundles / (name or default_name(budgets_s, document["constraints"]))
    kept, text = place_of_earlier(path, CoDesign.load(draft).document)
    write_bundle(path, document, tensors, modules, kept)
    told = [text, point_to(run, path) if is_newest else ""]
    if prover.progress:
        announce(filter(None, told))
    return CoDesign.load(path)


def _tested_before(run: RunDirectory, bundle: CoDesign) -> dict[str, Any] | None:
    """The test result of the same module with the same weights from another bundle of the run."""
    from chanas.bundle.places import bundles_of

    def tested(document: Mapping[str, Any], part: Mapping[str, Any]) -> list[Any]:
        return [document["hashes"].get(name) for name in (WEIGHTS, "supernet", "splits", part["module"])]

    for earlier in bundles_of(run):
        for part in earlier["targets"]:
            known = {name: part["measured"][name] for name in TESTED if name in part["measured"]}
            if len(known) == len(TESTED) and tested(earlier, part) == tested(bundle.document, bundle.part):
                return known
    return None


def _document(outcome: SearchOutcome, prover: Prover, constraints: Mapping[str, float], seed: int) -> dict[str, Any]:
    """Describe the winning network."""
    winner, of_source = outcome.architecture, prover.source.document(outcome.winner.proof)
    measured = of_source["measured"]
    if prover.rounds(winner) and "top1_holdout" in measured:
        measured = {**measured, "top1_holdout_float32": prover.top1_float32[winner]}
    space, classes = prover.source.task.space, prover.source.task.num_classes
    blocks = winner.blocks(space, classes)
    targets = []
    for number, target in enumerate(outcome.targets):
        timing = outcome.winner.proof.timings[number]
        targets.append(
            {
                **_schedules(target, blocks, prover),
                "target": in_several(target.lut.header.target, [target.hardware]).to_json(),
                "constraints": {"latency_s": target.budget_s},
                "predicted": {"latency_s": outcome.winner.predicted_s[number]},
                "measured": {"latency_s": timing.latency_s, "spread_s": timing.spread_s},
                "peak_memory_bytes": network_bytes(blocks, target.hardware),
                "seeds": {"prescheduler": target.lut.header.seed},
                "hashes": _table_hashes(target, prover.source.run),
            }
        )
    return {
        **of_source,
        "measured": measured,
        "architecture": {"key": winner.key, "genome": encode(space, [winner.plain])[0].tolist()},
        "space": space.to_json(),
        "targets": targets,
        "constraints": dict(constraints),
        "predicted": {"top1": outcome.winner.proposal.predicted_top1},
        "num_macs": sum(b.num_macs for b in blocks),
        "num_params": sum(b.num_params for b in blocks),
        "versions": versions(),
        "seeds": {"search": seed, **of_source["seeds"]},
        "hashes": {"search_space": space.digest, **of_source["hashes"]},
    }


def _table_hashes(target: SearchTarget, run: RunDirectory) -> dict[str, str]:
    """Hashes of a target's tables: `lut`, and `lut-int8` and so on of those of further dtypes."""
    others = {f"lut-{lut.header.target.dtype_name}": lut.header.target.name for lut in target.lut.others.values()}
    return {name: file_digest(run.lut(of)) for name, of in {"lut": target.name, **others}.items()}


def _schedules(target: SearchTarget, blocks: Sequence[BlockConfig], prover: Prover) -> dict[str, Any]:
    """Schedules of a network's blocks from a target's table, and what `block_rows` says of each block."""
    lut, version = target.lut, target.lut.header.space_version
    return {
        **({} if version is None else {"space_version": version}),
        "schedules": [{"block": b.key, "operators": [[k, list(p)] for k, p in lut.row(b).schedules]} for b in blocks],
        "blocks": block_rows(target, blocks, prover),
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
