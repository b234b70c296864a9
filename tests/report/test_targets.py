"""chanas/report/targets.py: the networks of several targets side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from chanas.files.run import RunDirectory
from chanas.files.writing import read_json, write_json
from chanas.report.page import build_report
from chanas.report.reading import read_run

MakeRun = Callable[..., RunDirectory]


def page_of(run: RunDirectory) -> str:
    return build_report(run).read_text(encoding="utf-8")


def words(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def change(run: RunDirectory, **fields: Any) -> None:
    write_json(run.per_target, {**read_json(run.per_target, "targets"), **fields})


def test_each_target_has_its_network_drawn_and_one_that_failed_its_reason(make_run: MakeRun) -> None:
    page = page_of(make_run("luts", "targets"))
    assert re.findall(r'<figure id="figure-(target-\d)">', page) == ["target-1", "target-2"]
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    text = words(page)
    assert "A <cpu> device: 910 µs measured, budget 1 ms; top-1 97.00 % on the test images." in text
    assert "A <gpu <0>> device: 900 µs by its table, not measured, budget 1 ms" in text
    assert "Nothing can be measured on it from where it was searched: it is <far> away." in text
    assert "lost no <network> is that fast" in text


def test_what_each_network_costs_on_the_others_stands_beside_their_own(make_run: MakeRun) -> None:
    text = words(page_of(make_run("luts", "targets")))
    assert "network searched for on cpu on gpu <0>" in text
    assert "cpu 910 µs ~500 µs (1.25 ×)" in text
    assert "gpu <0> 1.82 ms! (2.00 ×) ~400 µs" in text


def test_it_says_what_sets_the_networks_apart_and_nothing_else(make_run: MakeRun) -> None:
    page = page_of(make_run("luts", "targets"))
    seen = re.findall(r"<li>(.*?)</li>", page)
    assert [words(line) for line in seen] == [
        "The networks for gpu <0> have larger kernels than those for cpu: 5 against 3 on average, and so in 100 of 100 "
        "pairs.",
        "The networks for gpu <0> have more 5×5 kernels than those for cpu: 100 % against 0 % on average, and so in "
        "100 of 100 pairs.",
    ]
    assert "as good as the best by the predictor, within its error of 0.31 points" in words(page)


def test_networks_that_nothing_sets_apart_are_said_to_be_so(make_run: MakeRun) -> None:
    run = make_run("luts", "targets")
    both = [run.target_result(name) for name in ("cpu", "gpu <0>")]
    first, second = (read_json(path, "result") for path in both)
    write_json(both[0], {**first, "alike": first["alike"] + second["alike"]})
    page = page_of(run)
    assert "Nothing clearly sets the networks apart." in page
    assert 'id="seen"' not in page


def test_targets_that_could_not_choose_among_the_same_are_not_compared(make_run: MakeRun) -> None:
    run = make_run("luts", "targets")
    entries = read_json(run.per_target, "targets")["targets"]
    change(run, targets=[{**entries[0], "covered": ["r24-w1", "r32-w1"]}, *entries[1:]])
    result = read_json(run.target_result("cpu"), "result")
    larger = [key.replace("r24-", "r32-") for key in result["alike"]]
    write_json(run.target_result("cpu"), {**result, "alike": larger})
    page = page_of(run)
    assert 'id="seen"' not in page
    assert "Targets whose tables cover different sub-spaces are not compared" in page
    change(run, targets=entries)
    assert "The networks for cpu take larger images than those for gpu <0>: 32 against 24 pixels" in words(page_of(run))


def test_without_a_single_network_the_first_targets_stands_for_it(make_run: MakeRun) -> None:
    run = make_run("luts", "targets")
    read = read_run(run)
    assert read.shown == "cpu"
    assert "What stands below of one network is that of target cpu." in page_of(run)
    assert "is not there yet: run chanas search" not in words(page_of(run))


def test_a_single_network_keeps_its_place(make_run: MakeRun) -> None:
    read = read_run(make_run("luts", "search", "bundle", "targets"))
    assert read.shown is None
    assert set(read.target_results) == {"cpu", "gpu <0>"}


@pytest.mark.parametrize("damage", ["{", "[]", '{"targets": [{"target": "../../x", "winner": "w"}]}'])
def test_a_damaged_document_is_no_end(damage: str, make_run: MakeRun) -> None:
    run = make_run("luts", "search", "bundle", "targets")
    run.per_target.write_text(damage)
    assert "the network and how fast it runs" in page_of(run)


@pytest.mark.parametrize("junk", [None, 3, "text", [], [1, "x"], {}, {"key": None}], ids=repr)
def test_fields_of_another_kind_do_no_harm(junk: Any, make_run: MakeRun) -> None:
    run = make_run("luts", "targets")
    whole, result = read_json(run.per_target, "targets"), read_json(run.target_result("cpu"), "result")
    for field in whole:
        write_json(run.per_target, {**whole, field: junk})
        page_of(run)
    for part in ("targets", "cross"):
        for field in whole[part][0]:
            change(run, **{**whole, part: [{**whole[part][0], field: junk}, *whole[part][1:]]})
            page_of(run)
    change(run, **whole)
    for field in ("winner", "alike", "finalists"):
        write_json(run.target_result("cpu"), {**result, field: junk})
        page_of(run)


def test_searches_that_were_cut_off_say_so(make_run: MakeRun) -> None:
    run = make_run("luts", "targets")
    change(run, complete=False, cross=[])
    assert "The searches were cut off; the same command goes on." in page_of(run)
