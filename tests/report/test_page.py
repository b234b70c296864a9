from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from html_pages import Page

from chanas.errors import ChanasError
from chanas.files.run import RunDirectory
from chanas.network.accuracy import wilson_interval
from chanas.report.page import build_report

FIGURES = [
    *("pareto", "front", "lut", "cdf", "cdf-accuracy", "evolution", "predictor", "ablation"),
    *("architecture", "blocks"),
    "tuning",
    *("losses", "accuracy"),
]


def read(run: RunDirectory) -> Page:
    return Page(build_report(run).read_text(encoding="utf-8"))


def test_a_whole_run_has_every_figure(make_run: Callable[..., RunDirectory], key: str) -> None:
    run = make_run()
    page = read(run)
    assert sorted(page.figures) == sorted(FIGURES)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labels) <= set(page.ids)
    assert page.tables == page.figures
    assert "is not there yet" not in page.text
    for told in (key, "930 µs", "93 % of the budget of 1 ms", "97.0 %", "3.0 ×", "as fast as PyTorch eager (2.79 ms)"):
        assert told in page.text
    assert page.text.index("930 µs") < page.text.index("Why this one")


def test_the_page_needs_nothing_from_outside(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    text = build_report(run).read_text(encoding="utf-8")
    assert Page(text).fetched == []
    assert "<script" not in text
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_a_page_of_a_large_search_stays_small(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    path = run.search / "result.json"
    result = json.loads(path.read_text())
    many = {"latency_s": [1e-3 + 1e-9 * i for i in range(100_000)], "top1": [0.9] * 100_000}
    path.write_text(json.dumps({**result, "cloud": many, "evaluated": many}))
    assert build_report(run).stat().st_size < 1_000_000


def test_text_from_files_is_escaped(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    text = build_report(run).read_text(encoding="utf-8")
    page = Page(text)
    for raw in ("<fast>", "<crashed>", "<run>", "conv1x1 <"):
        assert raw not in text
        assert raw in page.text


STAGES = {
    "supernet": ("chanas train-supernet", {"losses", "accuracy"}),
    "records": ("chanas prescheduler", {"tuning"}),
    "luts": ("chanas prescheduler", set()),
    "search": ("chanas search --latency …", {"pareto", "cdf", "cdf-accuracy", "evolution", "predictor"}),
    "bundle": ("chanas search --latency …", {"architecture", "blocks"}),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_stage_is_one_line_with_its_command(stage: str, make_run: Callable[..., RunDirectory]) -> None:
    command, lost = STAGES[stage]
    page = read(make_run("front", "ablation", *(s for s in STAGES if s != stage)))
    assert set(page.figures) == set(FIGURES) - lost
    assert page.text.count("is not there yet") == 1
    assert f"is not there yet: run {command}" in page.text


def test_without_a_measured_front_one_line_says_how_to_get_it(make_run: Callable[..., RunDirectory]) -> None:
    page = read(make_run("ablation", *STAGES))
    assert "front" not in page.figures
    assert "chanas search --pareto" in page.text


def test_it_tells_what_tuned_schedules_are_worth(make_run: Callable[..., RunDirectory], key: str) -> None:
    text = read(make_run()).text
    assert f"tuned – – {key} 930 µs 96.00 % –" in text
    assert f"untuned TVM 12.3 × 0.740 {key}.k3e3 1.1 ms 96.00 % 0.42" in text


def test_without_an_ablation_one_line_says_how_to_get_it(make_run: Callable[..., RunDirectory]) -> None:
    page = read(make_run("front", *STAGES))
    assert "ablation" not in page.figures
    assert "chanas ablate" in page.text


def test_it_tells_what_the_calibration_adds(make_run: Callable[..., RunDirectory]) -> None:
    """One block of 330 µs and 12 of 20 are 570 µs; the table predicts 900."""
    text = read(make_run()).text
    assert "The sum is 570 µs. Calibration corrects it by +330 µs: 2 µs for the start of the network" in text
    assert "stem and first block 7 %, stages 86 %, head and classifier 7 %" in text
    assert "2.0 % on average, 5.0 % at worst, Kendall τ 0.970" in text


def test_it_tells_what_it_cost_from_what_was_recorded(make_run: Callable[..., RunDirectory]) -> None:
    text = read(make_run()).text
    assert "training the supernet once per task 3.75 min 0.062 100 steps" in text
    assert "table “cpu” once per device 10 min 0.17 tuning and timing of 2 blocks; the device was timing 50 %" in text
    assert "search per budget 42 s 0.012 30 s evaluating and learning, 2 s searching, 10 s compiling" in text
    assert "one more target each 10.7 min 0.18 a table and a search; nothing is trained" in text


def test_a_figure_without_data_is_a_line_that_says_why(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    path = run.search / "result.json"
    result = json.loads(path.read_text())
    result["predictor"]["learning_curve"] = result["predictor"]["learning_curve"][:1]
    path.write_text(json.dumps({**result, "evolution": None}))
    page = read(run)
    assert not {"evolution", "predictor"} & set(page.figures)
    assert "the predictor was fitted once" in page.text
    assert "There was no evolution" in page.text


def test_what_was_not_recorded_is_not_made_up(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    for path, name in ((run.search / "result.json", "seconds"), (run.lut("cpu"), "header")):
        document = json.loads(path.read_text())
        del document[name]
        path.write_text(json.dumps(document))
    text = read(run).text
    assert text.count("not recorded") == 2
    assert "one more target" not in text


def test_each_block_has_its_schedule_in_words(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    page = build_report(run).read_text(encoding="utf-8")
    assert "<h2>The schedules</h2>" in page
    assert "depthwise: tiles of 2 × 7 pixels; pointwise: tiles of 7 pixels" in page
    assert all(text in page for text in ("61.2", "52 %", "30 µs", "1.50 ×"))
    bundle = json.loads((run.bundle / "codesign.json").read_text(encoding="utf-8"))
    for block in bundle["targets"][0]["blocks"]:
        del block["schedule"]
    (run.bundle / "codesign.json").write_text(json.dumps(bundle), encoding="utf-8")
    assert "The schedules" not in build_report(run).read_text(encoding="utf-8")


def test_it_tells_what_dtypes_cost(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    assert "random dtypes" not in read(run).text
    path = run.search / "result.json"
    losses = {"num_evaluations": 48, "mean_points": 0.31, "error_points": 0.22, "costs_points": {"<int8>": [0.0, 0.4]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "losses": losses}))
    told = " ".join(read(run).text.split())
    assert "In random dtypes 48 sub-networks lost 0.31 points on average." in told
    assert "A block costs at most 0.40 points in <int8>; the sum is 0.22 points off" in told


def test_intervals_are_wilsons_and_saturation_is_told(make_run: Callable[..., RunDirectory]) -> None:
    page = build_report(make_run()).read_text(encoding="utf-8")
    assert "±" not in page
    assert "95 % interval" in page
    low, high = wilson_interval(72, 75)
    assert f"95 % interval {100 * low:.1f} to {100 * high:.1f} %" in page
    assert "75 holdout images cannot tell the networks inside the budget apart" in page


def test_a_network_without_weights_says_where_its_accuracy_is_from(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run("records", "luts", "search", "front", "bundle")
    path = run.bundle / "codesign.json"
    bundle = json.loads(path.read_text())
    del bundle["targets"][0]["measured"]["top1_test"]
    bundle["measured"]["top1_table"] = 0.771
    bundle["hashes"] = {"accuracy_table": "cafe"}
    path.write_text(json.dumps(bundle))
    text = read(run).text
    assert "77.1 % accuracy by the table that was given" in text
    assert "Nothing was trained" in text
    assert "known, by the given table" in text
    assert "on holdout" not in text


def test_a_network_of_several_images_at_once_and_its_table_say_so(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    assert "images at once" not in read(run).text
    for path in (run.bundle / "codesign.json", run.lut("cpu")):
        data = json.loads(path.read_text())
        part = data["header"] if "header" in data else data["targets"][0]["target"]
        part["batch"] = 32
        path.write_text(json.dumps(data))
    assert "1 thread(s), 32 images at once" in read(run).text
    assert "made 2025-01-01T00:00:00Z, 32 images at once." in read(run).text


def test_an_empty_run_makes_no_page(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run("none")
    with pytest.raises(ChanasError, match="nothing to report"):
        read(run)
    assert not run.report.exists()


def test_damaged_files_are_told_and_left_out(make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    (run.search / "result.json").write_text('{"pareto": 3')
    page = read(run)
    assert "pareto" not in page.figures
    assert "cut short or damaged" in page.text


JUNK: list[Any] = [None, "text", [1, "x"], {"key": None}]
MORE_JUNK: list[Any] = [pytest.param(junk, marks=pytest.mark.slow) for junk in (3, [], {})]


FILES = ("search/result.json", "search/pareto.json", "ablation/result.json", "bundle/codesign.json", "luts/cpu.json")


@pytest.mark.parametrize("junk", [*JUNK, *MORE_JUNK], ids=repr)
@pytest.mark.parametrize("name", FILES)
def test_fields_of_another_kind_do_no_harm(name: str, junk: Any, make_run: Callable[..., RunDirectory]) -> None:
    run = make_run()
    path = run.root / name
    whole = json.loads(path.read_text())
    for field in whole:
        path.write_text(json.dumps({**whole, field: junk}))
        read(run)


def test_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ChanasError, match="does not exist; run `chanas train-supernet` first"):
        build_report(RunDirectory(tmp_path / "nothing"))


def test_the_report_imports_no_stage_and_nothing_heavy() -> None:
    program = (
        "import sys; import chanas.report.page; "
        "heavy = {'torch', 'tvm', 'sklearn', 'matplotlib', 'chanas.search', 'chanas.supernet', 'chanas.prescheduler'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
