from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import encode
from chanas.errors import ChanasError
from chanas.search.accuracy.evaluations import EvaluationStore, TableEvaluations
from chanas.search.accuracy.table import AccuracyTable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "search" / "evaluations.jsonl"


def test_what_is_added_is_found_again(path: Path, tiny_space: SearchSpace) -> None:
    store = EvaluationStore(path, tiny_space, "abc")
    assert not path.exists()
    store.add(tiny_space.smallest, 0.5)
    store.add(tiny_space.largest, 0.75, purpose="refine")
    again = EvaluationStore(path, tiny_space, "abc")
    assert again.found == store.found
    assert [e.architecture for e in again.with_purpose("refine")] == [tiny_space.largest.key]
    assert EvaluationStore(path, tiny_space, "other weights").found == {}


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_last_line_is_dropped_and_the_file_made_whole(cut: int, path: Path, tiny_space: SearchSpace) -> None:
    store = EvaluationStore(path, tiny_space, "abc")
    store.add(tiny_space.smallest, 0.5)
    store.add(tiny_space.largest, 0.75)
    path.write_text(path.read_text()[:-cut])
    torn = EvaluationStore(path, tiny_space, "abc")
    assert list(torn.found) == [tiny_space.smallest.key, tiny_space.largest.key][: 2 if cut == 1 else 1]
    torn.add(tiny_space.largest, 0.75)
    whole = EvaluationStore(path, tiny_space, "abc")
    assert list(whole.found) == [tiny_space.smallest.key, tiny_space.largest.key]
    assert all(line.endswith("}") for line in path.read_text().splitlines())


def test_lines_of_other_weights_and_spaces_stay(path: Path, tiny_space: SearchSpace, demo_space: SearchSpace) -> None:
    EvaluationStore(path, tiny_space, "abc").add(tiny_space.smallest, 0.5)
    EvaluationStore(path, demo_space, "abc").add(demo_space.smallest, 0.6)
    EvaluationStore(path, tiny_space, "other").add(tiny_space.largest, 0.7)
    assert list(EvaluationStore(path, tiny_space, "abc").found) == [tiny_space.smallest.key]
    assert list(EvaluationStore(path, demo_space, "abc").found) == [demo_space.smallest.key]
    assert len(path.read_text().splitlines()) == 3


def test_a_bad_line_in_the_middle_is_named(path: Path, tiny_space: SearchSpace) -> None:
    EvaluationStore(path, tiny_space, "abc").add(tiny_space.smallest, 0.5)
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(ChanasError, match="line 1: expected an evaluation as JSON, got 'not json'"):
        EvaluationStore(path, tiny_space, "abc")


@pytest.mark.parametrize("top1", [-0.1, 1.5, float("nan")])
def test_only_accuracies_are_added(top1: float, path: Path, tiny_space: SearchSpace) -> None:
    with pytest.raises(ChanasError, match="expected a top-1 between 0 and 1"):
        EvaluationStore(path, tiny_space, "abc").add(tiny_space.smallest, top1)
    assert not path.exists()


def test_what_is_known_is_not_evaluated_again(path: Path, tiny_space: SearchSpace) -> None:
    asked: list[Architecture] = []

    def measure(architecture: Architecture) -> float:
        asked.append(architecture)
        return 0.5

    store = EvaluationStore(path, tiny_space, "abc", measure)
    assert store.can_grow
    assert store.evaluate(tiny_space.smallest, "refine") == store.evaluate(tiny_space.smallest)
    assert asked == [tiny_space.smallest]
    genomes, top1 = EvaluationStore(path, tiny_space, "abc").training_set()
    np.testing.assert_array_equal(genomes, encode(tiny_space, asked))
    assert top1.tolist() == [0.5]


def test_a_table_knows_what_it_holds_and_learns_nothing_new(tiny_space: SearchSpace) -> None:
    genomes, top1 = encode(tiny_space, [tiny_space.smallest]), np.array([0.7])
    known = TableEvaluations(tiny_space, AccuracyTable((tiny_space.smallest,), genomes, top1, 1, (), "d"), "d")
    assert not known.can_grow
    assert known.evaluate(tiny_space.smallest).top1 == 0.7
    np.testing.assert_array_equal(known.training_set()[0], genomes)
    with pytest.raises(ChanasError, match=f"the accuracy of {tiny_space.largest.key} is not known, and nothing can be"):
        known.evaluate(tiny_space.largest)
