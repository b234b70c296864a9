from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from strategies import spaces_and_architectures

from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import ArchitectureError
from chanas.report.drawing import draw_architecture


def network(drawing: str) -> ElementTree.Element:
    """The drawing without its legend."""
    root = ElementTree.fromstring(drawing)
    for child in [c for c in root if c.get("class") == "legend"]:
        root.remove(child)
    return root


@settings(max_examples=30)
@given(spaces_and_architectures())
def test_one_column_per_block(drawn: tuple[SearchSpace, Architecture]) -> None:
    space, architecture = drawn
    figure = draw_architecture(architecture, space, 10)
    root = network(figure.drawing)
    texts = [t for t in root.itertext() if t]
    blocks = [choice for stage in architecture.stages for choice in stage]
    assert [t for t in texts if t.startswith("k") and t[1:].isdigit()] == [f"k{k}" for k, _ in blocks]
    assert [t for t in texts if t.startswith("e") and t[1:].isdigit()] == [f"e{e}" for _, e in blocks]
    keys = [b.key for b in architecture.blocks(space, 10)][2:-2]
    assert [t for t in texts if t.startswith("mbconv-")] == keys
    assert [(row[1], row[2]) for row in figure.rows] == [(str(k), str(e)) for k, e in blocks]


def test_kernel_sizes_differ_in_shape_and_expand_ratios_in_width() -> None:
    space = SearchSpace.load("mbv3")
    stages = tuple(((k, e), (3, 3)) for k, e in ((3, 3), (5, 4), (7, 6), (3, 6), (5, 3)))
    root = network(draw_architecture(Architecture(224, 1.0, stages), space, 1000).drawing)
    name = "{http://www.w3.org/2000/svg}"
    rectangles = [r for r in root.iter(f"{name}rect") if r.get("fill") != "none"]
    assert len(list(root.iter(f"{name}polygon"))) == 1
    assert {(r.get("fill"), r.get("rx")) for r in rectangles} == {("var(--c0)", "0"), ("var(--c1)", "18")}
    assert len({r.get("width") for r in rectangles}) == 3


def test_a_long_network_goes_on_in_the_next_line() -> None:
    sizes = []
    for name in ("mbv3", "mbv3-32"):
        space = SearchSpace.load(name)
        architecture = space.largest if name == "mbv3" else space.smallest
        drawing = draw_architecture(architecture, space, 1000).drawing
        sizes.append([int(n) for n in re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawing)[0]])
    widths, heights = zip(*sizes, strict=True)
    assert max(widths) <= 900
    assert heights[0] > heights[1]


def test_an_architecture_of_another_space_is_refused() -> None:
    with pytest.raises(ArchitectureError):
        draw_architecture(SearchSpace.load("mbv3").largest, SearchSpace.load("mbv3-32"), 10)
