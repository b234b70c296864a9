"""The winning architecture, drawn as the paper draws its own (figure 12): one column per block, the kernel size as
colour and shape, the expand ratio as width."""

from __future__ import annotations

from html import escape

from chanas.arch import Architecture, SearchSpace
from chanas.report.svg import COLOURS, OTHER, svg

_COLUMN, _GAP, _HEIGHT, _TOP = 62, 6, 54, 40


def _block(x: float, kernel_size: int, expand_ratio: int, kernels: list[int], widest: int, hint: str) -> str:
    """One block, centred in its column: rectangle, pill or hexagon for the first, second and third kernel size."""
    index = kernels.index(kernel_size)
    width, y = _COLUMN * (0.4 + 0.52 * expand_ratio / widest), _TOP
    left, right = x + (_COLUMN - width) / 2, x + (_COLUMN + width) / 2
    paint = f'fill="{COLOURS[index % 6]}"'
    if index % 3 == 2:
        cut = min(12.0, width / 3)
        points = [(left, y + _HEIGHT / 2), (left + cut, y), (right - cut, y), (right, y + _HEIGHT / 2)]
        points += [(right - cut, y + _HEIGHT), (left + cut, y + _HEIGHT)]
        shape = f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" {paint}>'
        end = "</polygon>"
    else:
        radius = 0 if index % 3 == 0 else 18
        shape = f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT}" rx="{radius}" {paint}>'
        end = "</rect>"
    middle = x + _COLUMN / 2
    return (
        f"{shape}<title>{escape(hint)}</title>{end}"
        f'<text class="on-shape" x="{middle:.1f}" y="{y + 24}" text-anchor="middle">k{kernel_size}</text>'
        f'<text class="on-shape" x="{middle:.1f}" y="{y + 39}" text-anchor="middle">e{expand_ratio}</text>'
    )


def _fixed(x: float, name: str, detail: str) -> str:
    middle = x + _COLUMN / 2
    return (
        f'<rect x="{x + 8:.1f}" y="{_TOP}" width="{_COLUMN - 16}" height="{_HEIGHT}" fill="none" stroke="{OTHER}" '
        f'stroke-width="1.5"><title>{escape(f"{name} {detail}")}</title></rect>'
        f'<text class="soft" x="{middle:.1f}" y="{_TOP + 24}" text-anchor="middle">{escape(name)}</text>'
        f'<text class="soft" x="{middle:.1f}" y="{_TOP + 39}" text-anchor="middle">{escape(detail)}</text>'
    )


def draw_architecture(architecture: Architecture, space: SearchSpace, num_classes: int) -> str:
    """The network from input to classifier, stage by stage.

    Raises:
        ArchitectureError: the architecture is not in `space`.
    """
    stem, _, *_, head, classifier = architecture.blocks(space, num_classes)
    kernels, widest = list(space.kernel_sizes), space.expand_ratios[-1]
    parts = [_fixed(0, "stem", str(stem.out_channels)), _fixed(_COLUMN, "k3 e1", "first")]
    x = 2.0 * _COLUMN + _GAP
    for number, stage in enumerate(architecture.stages):
        width = _COLUMN * len(stage)
        first = space.block(architecture.sub_space, number, 0, *stage[0])
        size, channels = first.output_size, first.out_channels
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="16" text-anchor="middle">stage {number + 1}</text>'
            f'<path class="axis" d="M{x + 3:.1f} 30V24H{x + width - 3:.1f}V30"/>'
            f'<text class="soft" x="{x + width / 2:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">'
            f"{channels} × {size}²</text>"
        )
        for position, (kernel_size, expand_ratio) in enumerate(stage):
            hint = space.block(architecture.sub_space, number, position, kernel_size, expand_ratio).key
            parts.append(_block(x, kernel_size, expand_ratio, kernels, widest, hint))
            x += _COLUMN
        x += _GAP
    parts.append(_fixed(x, "head", str(head.out_channels)))
    parts.append(_fixed(x + _COLUMN, "classes", str(classifier.out_channels)))
    right = x + 2 * _COLUMN
    legend_y = _TOP + _HEIGHT + 46
    legend = f'<text class="soft" x="8" y="{legend_y}">' + escape(
        f"input {architecture.resolution}², width × {architecture.width_multiplier:g}; colour and shape: kernel size "
        f"({', '.join(map(str, kernels))}); width of a shape: expand ratio "
        f"({', '.join(map(str, space.expand_ratios))}); "
        "under a stage: channels × pixels²"
    )
    depths = ", ".join(map(str, architecture.depths))
    description = (
        f"{architecture.key}: {len(architecture.stages)} stages of {depths} blocks at {architecture.resolution} pixels."
    )
    content = "".join(parts) + legend + "</text>"
    return svg("architecture", "The architecture", description, int(max(right, 760)), legend_y + 12, content)
