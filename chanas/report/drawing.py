"""The winning architecture, drawn as the paper draws its own (figure 12): one column per block, the kernel size as
colour and shape, the expand ratio as width."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from chanas.core.arch import Architecture, SearchSpace
from chanas.report.svg import COLOURS, OTHER, Figure, svg

_COLUMN, _GAP, _HEIGHT, _TOP = 62, 8, 54, 40
_LINE = _TOP + _HEIGHT + 40
_MAX_WIDTH = 900  # a longer network goes on in the next line


def _shape(x: float, y: float, width: float, index: int) -> str:
    """Rectangle, pill or hexagon for the first, second and third kernel size, `width` wide; not closed."""
    paint = f'fill="{COLOURS[index % 6]}"'
    if index % 3 != 2:
        radius = 0 if index % 3 == 0 else 18
        return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT}" rx="{radius}" {paint}>'
    cut, right = min(12.0, width / 3), x + width
    points = [(x, y + _HEIGHT / 2), (x + cut, y), (right - cut, y), (right, y + _HEIGHT / 2)]
    points += [(right - cut, y + _HEIGHT), (x + cut, y + _HEIGHT)]
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" {paint}>'


def _block(x: float, kernel_size: int, expand_ratio: int, space: SearchSpace, hint: str) -> str:
    """One block, centred in its column."""
    index = space.kernel_sizes.index(kernel_size)
    width, y, middle = _COLUMN * (0.4 + 0.52 * expand_ratio / space.expand_ratios[-1]), _TOP, x + _COLUMN / 2
    shape = _shape(middle - width / 2, y, width, index)
    end = "</polygon>" if shape.startswith("<polygon") else "</rect>"
    return (
        f"{shape}<title>{escape(hint)}</title>{end}"
        f'<text class="on-shape" x="{middle:.1f}" y="{y + 24}" text-anchor="middle">k{kernel_size}</text>'
        f'<text class="on-shape" x="{middle:.1f}" y="{y + 40}" text-anchor="middle">e{expand_ratio}</text>'
    )


def _fixed(x: float, name: str, detail: str) -> str:
    """A part that every architecture has."""
    middle = x + _COLUMN / 2
    return (
        f'<rect x="{x + 3:.1f}" y="{_TOP}" width="{_COLUMN - 6}" height="{_HEIGHT}" fill="none" stroke="{OTHER}" '
        f'stroke-width="1.5"><title>{escape(f"{name} {detail}")}</title></rect>'
        f'<text class="soft" x="{middle:.1f}" y="{_TOP + 24}" text-anchor="middle">{escape(name)}</text>'
        f'<text class="soft" x="{middle:.1f}" y="{_TOP + 40}" text-anchor="middle">{escape(detail)}</text>'
    )


def _stage(architecture: Architecture, space: SearchSpace, number: int) -> str:
    """The blocks of one stage from x = 0, under its name and over its output."""
    stage = architecture.stages[number]
    width = _COLUMN * len(stage)
    first = space.block(architecture.sub_space, number, 0, *stage[0])
    parts = [
        f'<text x="{width / 2:.1f}" y="17" text-anchor="middle">stage {number + 1}</text>'
        f'<path class="axis" d="M3 32V25H{width - 3}V32"/>'
        f'<text class="soft" x="{width / 2:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">'
        f"{first.out_channels}×{first.output_size}²</text>"
    ]
    for position, (kernel_size, expand_ratio) in enumerate(stage):
        hint = space.block(architecture.sub_space, number, position, kernel_size, expand_ratio).key
        parts.append(_block(position * _COLUMN, kernel_size, expand_ratio, space, hint))
    return "".join(parts)


def _places(widths: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(x, line) of things set side by side, each line at most `limit` wide where nothing in it is wider."""
    x, line, out = 0, 0, []
    for width in widths:
        if x and x + width > limit:
            x, line = 0, line + 1
        out.append((x, line))
        x += width + _GAP
    return out


def _lines(groups: Sequence[tuple[str, int]]) -> tuple[str, int, int]:
    """Groups of (content from x = 0, columns) set side by side, in as few lines as they need, and these about equally
    long: content, width, height."""
    widths = [_COLUMN * num_columns for _, num_columns in groups]
    num_lines = _places(widths, _MAX_WIDTH)[-1][1] + 1
    limits = range(min(max(widths), _MAX_WIDTH), _MAX_WIDTH + 1)
    places = next(p for limit in limits if (p := _places(widths, limit))[-1][1] < num_lines)
    content = "".join(
        f'<g transform="translate({x} {line * _LINE})">{drawing}</g>'
        for (drawing, _), (x, line) in zip(groups, places, strict=True)
    )
    return content, max(x + width for (x, _), width in zip(places, widths, strict=True)), num_lines * _LINE


def _legend(architecture: Architecture, space: SearchSpace, y: int) -> str:
    """A sample of each kernel size, and what the widths say."""
    parts, x = [f'<text x="4" y="{y + 16}">kernel size</text>'], 92.0
    for index, kernel_size in enumerate(space.kernel_sizes):
        shape = _shape(0, 0, 40, index)
        end = "</polygon>" if shape.startswith("<polygon") else "</rect>"
        parts.append(f'<g transform="translate({x} {y}) scale(0.5 0.42)">{shape}{end}</g>')
        parts.append(f'<text x="{x + 26}" y="{y + 16}">{kernel_size}</text>')
        x += 56
    ratios = ", ".join(map(str, space.expand_ratios))
    parts.append(f'<text x="{x + 12}" y="{y + 16}">width of a shape: expand ratio ({ratios})</text>')
    parts.append(
        f'<text class="soft" x="4" y="{y + 40}">input {architecture.resolution}², width multiplier '
        f"{architecture.width_multiplier:g}; under a stage: channels×pixels²</text>"
    )
    return f'<g class="legend">{"".join(parts)}</g>'


def draw_architecture(
    architecture: Architecture, space: SearchSpace, num_classes: int, name: str = "architecture"
) -> Figure:
    """The network from input to classifier, stage by stage; `name` is a prefix of ids, unique in the page.

    Raises:
        ArchitectureError: the architecture is not in `space`.
    """
    blocks = architecture.blocks(space, num_classes)
    stem, first, *_, head, classifier = blocks
    ends = _fixed(0, "stem", f"{stem.out_channels}"), _fixed(_COLUMN, "k3 e1", f"{first.out_channels}")
    last = _fixed(0, "head", f"{head.out_channels}"), _fixed(_COLUMN, "classes", f"{classifier.out_channels}")
    stages = [(_stage(architecture, space, i), len(stage)) for i, stage in enumerate(architecture.stages)]
    content, width, height = _lines([("".join(ends), 2), *stages, ("".join(last), 2)])
    depths = ", ".join(map(str, architecture.depths))
    description = (
        f"{architecture.key}: {len(architecture.stages)} stages of {depths} blocks at {architecture.resolution} pixels."
    )
    drawing = svg(
        name,
        "The architecture",
        description,
        max(width, 560),
        height + 50,
        content + _legend(architecture, space, height + 2),
    )
    rows = [
        (f"stage {i + 1}.{j + 1}", f"{k}", f"{e}", f"{b.out_channels}", f"{b.output_size}²")
        for i, stage in enumerate(architecture.stages)
        for j, (k, e) in enumerate(stage)
        for b in [space.block(architecture.sub_space, i, j, k, e)]
    ]
    return Figure(drawing, ("block", "kernel size", "expand ratio", "channels", "pixels"), tuple(rows), 4)
