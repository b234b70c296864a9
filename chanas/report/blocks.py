"""The time inside the winning network: a bar for each block, by the latency table."""

from __future__ import annotations

from dataclasses import dataclass

from chanas.core.arch import Architecture
from chanas.errors import ArchitectureError
from chanas.report.bars import Bar, draw_bars
from chanas.report.figures import unit_of
from chanas.report.reading import RunData, at, dicts, real
from chanas.report.svg import COLOURS, OTHER, Figure, number


@dataclass(frozen=True)
class BlockTime:
    """One block of the winner: what people call it, its key in the table, its kernel size (0: none), seconds."""

    name: str
    key: str
    part: str
    kernel_size: int
    seconds: float


def block_times(run: RunData) -> list[BlockTime]:
    """The blocks in order of execution; empty without a bundle that has them."""
    rows = [(str(b.get("key")), v) for b in dicts(run.part, "blocks") if (v := real(b, "latency_s")) is not None]
    names = _names(str(at(run.bundle, "architecture", "key")))
    if len(names) != len(rows):
        names = [(key, "block", 0) for key, _ in rows]
    return [BlockTime(name, key, part, k, v) for (name, part, k), (key, v) in zip(names, rows, strict=True)]


def _names(key: str) -> list[tuple[str, str, int]]:
    try:
        architecture = Architecture.from_key(key)
    except ArchitectureError:
        return []
    body = [(f"stage {number}", k) for number, stage in enumerate(architecture.stages, start=1) for k, _ in stage]
    parts, found = iter([("stem", 0), ("stem", 0), *body, ("head", 0), ("head", 0)]), []
    part = ("stem", 0)
    for name, block in zip(architecture.block_names(), architecture.outline(), strict=True):
        part = (part[0], 0) if block.converts else next(parts)
        found.append((name, *part))
    return found


def draw_block_times(run: RunData) -> Figure | None:
    """Bars in order of execution; colours are those of the kernel sizes in the drawing of the architecture."""
    blocks = block_times(run)
    if not blocks:
        return None
    total, extra_s = sum(b.seconds for b in blocks), correction_s(run)
    slowest = max(blocks, key=lambda b: b.seconds)
    longest = max(slowest.seconds, abs(extra_s or 0.0)) or 1.0
    unit, factor = unit_of([longest])
    known = at(run.bundle, "space", "kernel_sizes")
    kernels = known if isinstance(known, list) else []
    bars = []
    for block in blocks:
        index = kernels.index(block.kernel_size) if block.kernel_size in kernels else None
        paint = f'fill="{OTHER if index is None else COLOURS[index % 6]}"'
        told = f"{factor * block.seconds:.3g} {unit}, {_share(block.seconds, total)} %"
        bars.append(Bar(block.name, block.seconds / longest, paint, told, block.key))
    if extra_s is not None:
        paint = 'fill="none" stroke="var(--ink)" stroke-width="1.5" stroke-dasharray="4 3"'
        told = f"{factor * extra_s:+.3g} {unit}"
        bars.append(Bar("correction", abs(extra_s) / longest, paint, told, "correction"))
    description = (
        f"{len(blocks)} blocks take {factor * total:.3g} {unit} together; the longest is "
        f"{slowest.name} with {factor * slowest.seconds:.3g} {unit}."
    )
    drawing = draw_bars("blocks", "Time inside the network", description, bars)
    rows = [(b.name, b.key, number(factor * b.seconds), _share(b.seconds, total)) for b in blocks]
    if extra_s is not None:
        rows.append(("correction", "", number(factor * extra_s), "–"))
    return Figure(drawing, ("block", "key", f"time ({unit})", "share (%)"), tuple(rows), 2)


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.1f}" if total else "–"


def correction_s(run: RunData) -> float | None:
    """Seconds that the table's calibration adds to the sum of the winner's blocks (start-up, boundaries, scale); None
    if the table is not calibrated or there is no winner."""
    predicted = real(run.part, "predicted", "latency_s")
    blocks = block_times(run)
    if predicted is None or not blocks or not isinstance(at(run.table, "calibration"), dict):
        return None
    return predicted - sum(b.seconds for b in blocks)


def shares(run: RunData) -> list[tuple[str, float]]:
    """Stem, stages together, head with classifier: their shares of the sum of the blocks. Empty without blocks."""
    blocks = block_times(run)
    total = sum(b.seconds for b in blocks)
    if not total or any(b.part == "block" for b in blocks):
        return []
    stem, head = (sum(b.seconds for b in blocks if b.part == part) for part in ("stem", "head"))
    named = (("stem and first block", stem), ("stages", total - stem - head), ("head and classifier", head))
    return [(name, seconds / total) for name, seconds in named]
