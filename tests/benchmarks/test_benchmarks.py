"""The benchmark scripts: how figures are judged and written, and the parts that time nothing."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tables import random_table

from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.latency import LatencyLUT
from chanas.network.static import StaticNetwork
from chanas.operators.steps import block_workloads

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = (
    "accuracy_predictor",
    "budgets",
    "compilers",
    "conv_layers",
    "cuda_compile",
    "cuda_networks",
    "design_spaces",
    "evolution_speed",
    "host_costs",
    "job_scheduler",
    "larger_spaces",
    "layouts",
    "lut_adapt",
    "lut_build",
    "lut_error",
    "network_latency",
    "offline_models",
    "operator_peak",
    "subspace_rules",
    "transfer",
    "transfer_networks",
    "transfer_tables",
    "transfer_tuning",
    "trials_of_one_operator",
    "tune_models",
    "tuners",
    "rpc_overhead",
    "service_load",
    "shipped_schedules",
    "tuning_efficiency",
    "precisions",
    "uneven_tiles",
    "warm_start",
    "with_without",
)
HEAVY = ("torch", "tvm", "onnx", "onnxruntime", "openvino")


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return content


HELP = """
import contextlib, io, json, runpy, sys, traceback

heavy, folder, *scripts = sys.argv[1:]
sys.path[:0] = [folder, heavy]
said = {}
for script in scripts:
    sys.argv, out = [script, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(f"{folder}/{script}.py", run_name="__main__")
    except SystemExit as ended:
        said[script] = [ended.code, out.getvalue()]
    except BaseException:
        said[script] = [1, traceback.format_exc()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What each script that is asked for help ends with and says, in one process that can import nothing heavy."""
    heavy = tmp_path_factory.mktemp("heavy")
    for name in HEAVY:
        (heavy / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    command = [sys.executable, "-c", HELP, str(heavy), str(FOLDER), *SCRIPTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_neither_compiler_nor_frameworks(script: str, helps: dict[str, tuple[int, str]]) -> None:
    code, said = helps[script]
    assert not code, said
    assert "--quick" in said


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_says_what_it_measures_and_how_to_run_it(script: str) -> None:
    text = (FOLDER / f"{script}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"python benchmarks/{script}.py [--quick]" in text.split('"""')[1]


@pytest.mark.parametrize(
    ("value", "goal", "lower_is_better", "met"),
    [
        (2.5, 2.0, False, True),
        (2.0, 2.0, False, True),
        (1.9, 2.0, False, False),
        (140.0, 150.0, True, True),
        (150.0, 150.0, True, True),
        (151.0, 150.0, True, False),
        (1.0, None, False, None),
        (None, None, False, None),
        (None, 2.0, False, False),
        (math.nan, 150.0, True, False),
        (-math.inf, 150.0, True, False),
    ],
)
def test_a_goal_is_met_or_not(
    common: ModuleType, value: float | None, goal: float | None, lower_is_better: bool, met: bool | None
) -> None:
    assert common.Figure(value, goal, lower_is_better).met is met


def test_a_quick_run_prints_its_figures_last_and_writes_nothing(
    common: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    common.finish("some", {"speed": common.Figure(2.34567, 2.0), "other": common.Figure(None)}, True, {"seed": 0})
    assert last_line(capsys) == {
        "speed": {"value": 2.346, "goal": 2.0, "met": True},
        "other": {"value": None, "goal": None, "met": None},
    }
    assert not common.RESULTS.exists()


def test_a_full_run_writes_figures_facts_and_seeds(common: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"seed": 7, "rows": [{"median_s": 0.123456789, "spread": math.nan}]}
    common.finish("some", {"time": common.Figure(3, 2.0, lower_is_better=True)}, False, extra)
    written = common.read_result("some", common.machine_kind())
    assert written["figures"] == last_line(capsys) == {"time": {"value": 3, "goal": 2.0, "met": False}}
    assert written["seed"] == 7
    assert written["rows"] == [{"median_s": 0.1235, "spread": None}]
    assert {"chanas", "python", "numpy", "apache-tvm"} <= written["versions"].keys()
    assert {"cpu", "gpu", "load_average"} <= written["machine"].keys()
    assert written["date"].startswith("20")


def test_the_geometric_mean_weighs_ratios_alike(common: ModuleType) -> None:
    assert common.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert math.isnan(common.geometric_mean([]))


# ---- lut_build ------------------------------------------------------------------------------------------------------
def test_a_whole_table_alone_has_a_goal(load: Any) -> None:
    lut_build = load("lut_build")
    build = lut_build.Build(10, 5, 80, 4, 20, 3600.0, 900.0, 3600.0, 1000, "", {"timeout": 4})
    figures = lut_build.figures_of(build, 2, whole=True)
    assert (figures["lut_minutes"].value, figures["lut_minutes"].met) == (60.0, True)
    assert figures["lut_timing_percent"].value == 25.0
    assert figures["lut_building_percent"].value == 50.0
    assert figures["lut_trials_per_operator"].value == 8.0
    assert figures["lut_failed_percent"].value == 5.0
    assert lut_build.figures_of(build, 2, whole=False)["lut_minutes"].met is None


def test_a_table_is_built_and_described(
    load: Any, common: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from chanas.measuring import fleet as module
    from tests.compiler.workbench import SyntheticPool

    monkeypatch.setattr(module, "WorkerPool", lambda _target: SyntheticPool())
    load("lut_build").main(["--quick"])
    figures = last_line(capsys)
    assert figures["lut_trials_per_operator"]["value"] == 1.0
    assert figures["lut_failed_percent"]["value"] == 0.0
    assert figures["lut_timing_percent"]["value"] > 0.0
    assert not common.RESULTS.exists()


def test_an_unknown_sub_space_ends_a_build_with_one_line(load: Any) -> None:
    with pytest.raises(SystemExit, match="lut_build: error: "):
        load("lut_build").main(["--quick", "--sub-space", "r1-w1"])


def test_the_table_is_judged_by_its_relative_errors(load: Any) -> None:
    lut_error = load("lut_error")
    pairs = [
        lut_error.Pair("a", 0.9, 1.1, 1.0, 1.2),
        lut_error.Pair("b", 2.4, 2.2, 2.0),
        lut_error.Pair("c", 2.2, 4.4, 4.0, 3.6),
    ]
    figures = lut_error.figures_of(pairs)
    assert figures["lut_mape_percent"].value == pytest.approx((10 + 20 + 45) / 3)
    assert figures["lut_mape_percent"].met is False
    assert figures["lut_calibrated_mape_percent"].value == pytest.approx(10)
    assert figures["lut_calibrated_worst_percent"].met is False
    assert figures["lut_calibrated_kendall_tau"].value == pytest.approx(1)
    assert figures["operators_mape_percent"].value == pytest.approx(15)
    assert figures["operators_bias_percent"].value == pytest.approx(5)
    assert figures["lut_worst_percent"].value == pytest.approx(45)
    assert figures["lut_bias_percent"].value == pytest.approx((-10 + 20 - 45) / 3)
    assert figures["lut_kendall_tau"].value == pytest.approx(1 / 3)
    assert lut_error.figures_of([])["lut_mape_percent"].met is False


def test_a_missing_table_is_one_line(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["lut_error", "--quick", "--run", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"lut_error: error: there is no latency table of target"):
        load("lut_error").main()


def compared(load: Any, **medians_s: float) -> Any:
    network_latency, timing = load("network_latency"), load("contenders").Timing
    timings = {name.replace("_", " "): timing.of([s, s, s]) for name, s in medians_s.items()}
    return network_latency.Compared("some", "key", timings)


def test_the_faster_layout_of_eager_counts(load: Any) -> None:
    rows = compared(load, chanas=1.0, PyTorch_eager=4.0)
    assert rows.ratio("PyTorch eager") == pytest.approx(4.0)
    rows.timings["PyTorch eager, channels last"] = rows.timings["chanas"]
    assert rows.ratio("PyTorch eager") == pytest.approx(1.0)


def test_a_ratio_over_several_networks_is_the_smallest_and_needs_all(load: Any) -> None:
    first, second = (
        compared(load, chanas=1.0, PyTorch_eager=4.0, OpenVINO=2.0),
        compared(load, chanas=2.0, PyTorch_eager=5.0),
    )
    figures = load("network_latency").figures_of("demo", [first, second])
    assert figures["demo_vs_eager"].value == pytest.approx(2.5)
    assert figures["demo_vs_eager"].met is True
    assert figures["demo_vs_openvino"].value is None
    assert figures["demo_vs_openvino"].met is None
    assert load("network_latency").figures_of("mobilenetv3", [second])["mobilenetv3_vs_openvino"].met is False


def test_torchvisions_network_is_taken_over_whole(load: Any) -> None:
    subjects = load("subjects")
    module = subjects.mobilenet_v3_large(seed=3)
    blocks = subjects.torchvision_blocks(module)
    assert [b.kind for b in blocks] == ["stem", *["mbconv"] * 15, "head", "classifier"]
    assert sum(b.num_macs for b in blocks) == pytest.approx(217e6, rel=0.01)  # torchvision's documentation: 0.22 G
    named = {
        f"blocks.{i}.{name}": torch.from_numpy(value)
        for i, tensors in enumerate(subjects.torchvision_tensors(module))
        for name, value in tensors.items()
    }
    ours = StaticNetwork(blocks).eval()
    answer = ours.load_state_dict(named, strict=False)
    assert not answer.unexpected_keys
    assert all(name.endswith("num_batches_tracked") for name in answer.missing_keys)
    with torch.inference_mode():
        image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(ours(image), module(image), rtol=1e-4, atol=1e-4)


def test_a_dense_bias_that_would_be_lost_is_an_error(load: Any) -> None:
    subjects = load("subjects")
    module = subjects.mobilenet_v3_large(seed=3)
    torch.nn.init.ones_(module.classifier[0].bias)
    with pytest.raises(ValueError, match="not zero"):
        subjects.torchvision_tensors(module)


def test_more_threads_have_goals_of_their_own(load: Any) -> None:
    row = compared(load, chanas=1.0, PyTorch_eager=4.0, OpenVINO=1.25)
    figures_of = load("network_latency").figures_of
    assert figures_of("mobilenetv3", [row])["mobilenetv3_vs_openvino"].met is False
    assert figures_of("mobilenetv3", [row], 2)["mobilenetv3_vs_openvino"].met is True
    assert figures_of("mobilenetv3", [row], 2)["mobilenetv3_vs_eager"].met is None


def test_the_limit_of_a_network_is_its_arithmetic_and_its_weights(load: Any) -> None:
    roofline, outcome = load("roofline"), importlib.import_module("chanas.measuring.candidates").Outcome
    block = SearchSpace.load("mbv3").fixed_blocks(SubSpace(224, 1.0), 1000)[3]
    dense = block_workloads(block)
    limits = roofline.Limits(peak_gflops=100.0, read_gbs=10.0)
    rows = roofline.breakdown([block], {w: outcome(1e-3, 0.0, None) for w in dense}, limits)
    macs = 960 * 1280 + 1280 * 1000
    assert rows["dense"]["arithmetic_s"] == pytest.approx(2 * macs / 100e9)
    assert rows["dense"]["weights_s"] == pytest.approx(4 * (macs + 1280 + 1000) / 10e9)
    assert rows["dense"]["measured_s"] == pytest.approx(2e-3)
    assert roofline.to_json(rows, limits, whole_s=2e-3)["share_of_limit"] < 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_array_in_the_nearest_cache_is_read_at_some_rate(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    roofline = load("roofline")
    monkeypatch.setattr(roofline, "READ_S", 0.01)
    assert roofline.read_bandwidth_gbs(1 << 14, tmp_path) > 1.0


def ways(load: Any, tuned: float, untuned: float, eager: float) -> Any:
    """One network's row of the comparison with and without schedules."""
    return compared(load, chanas=tuned, TVM_untuned=untuned, PyTorch_eager=eager)


def test_with_and_without_schedules_is_a_mean_of_ratios_and_a_comparison_of_ranks(load: Any) -> None:
    rows = [ways(load, 1.0, 4.0, 2.0), ways(load, 2.0, 32.0, 4.0), ways(load, 3.0, 24.0, 6.0)]
    figures = load("with_without").figures_of(rows)
    assert figures["untuned_over_tuned"].value == pytest.approx((4 * 16 * 8) ** (1 / 3))
    assert figures["smallest_untuned_over_tuned"].value == pytest.approx(4.0)
    assert figures["eager_over_tuned"].value == pytest.approx(2.0)
    assert figures["kendall_tau_tuned_untuned"].value == pytest.approx(1 / 3)
    assert figures["kendall_tau_tuned_eager"].value == pytest.approx(1.0)
    assert figures["num_networks"].value == 3


def test_a_network_that_did_not_run_in_every_way_is_left_out(load: Any) -> None:
    alone = compared(load, chanas=1.0, PyTorch_eager=2.0)
    figures = load("with_without").figures_of([alone, ways(load, 1.0, 4.0, 3.0)])
    assert (figures["eager_over_tuned"].value, figures["num_networks"].value) == (pytest.approx(3.0), 1)
    assert load("with_without").figures_of([alone])["smallest_untuned_over_tuned"].value is None


def test_networks_are_drawn_where_the_table_has_rows(load: Any, tiny_space: SearchSpace) -> None:
    draw = load("with_without").drawn_architectures
    covered = tiny_space.sub_spaces[:2]
    drawn = draw(tiny_space, 10, random_table(tiny_space, sub_spaces=covered), 7, seed=0)
    assert len(set(drawn)) == 7
    assert {(a.resolution, a.width_multiplier) for a in drawn} == {(s.resolution, s.width_multiplier) for s in covered}
    with pytest.raises(SystemExit, match="the table covers no sub-space"):
        draw(tiny_space, 10, LatencyLUT(random_table(tiny_space).header), 7, seed=0)


def test_the_workloads_are_those_of_the_goal(load: Any) -> None:
    operator_peak = load("operator_peak")
    pointwise = operator_peak.workloads_of("pointwise", operator_peak.MIN_FLOPS)
    assert all(w.op == "pointwise" and w.num_flops >= 2e6 for w in pointwise)
    assert len(set(pointwise)) == len(pointwise) > 40
    assert {w.kernel_size for w in operator_peak.workloads_of("depthwise")} == {3, 5, 7}


def test_a_share_of_the_peak_needs_every_operator(load: Any) -> None:
    share = load("operator_peak").share_of_peak
    assert share([{"warm": 50.0}, {"warm": 200.0}], "warm", 100.0) == pytest.approx(1.0)
    assert share([{"warm": 50.0}, {"warm": None}], "warm", 100.0) is None
    assert share([], "warm", 100.0) is None


def operator_results(load: Any, **changes: Any) -> Any:
    operator_peak, tuned = load("operator_peak"), load("tuning").Tuned
    content: dict[str, Any] = {
        "pointwise": [
            {"warm_gflops": 80.0, "cold_gflops": 60.0, "dense": False},
            {"warm_gflops": 20.0, "cold_gflops": 15.0, "dense": True},
        ],
        "depthwise": [
            {"chanas_s": 1.0, "peers_s": {"pytorch": 1.0, "onnxruntime": 2.0, "openvino": 0.5}},
            {"chanas_s": 2.0, "peers_s": {"pytorch": 8.0, "onnxruntime": 1.0, "openvino": None}},
        ],
        "num_depthwise": 2,
        "tuned": {
            operator_peak.WARM_POINTWISE: tuned({}, 10, {}, 9.0),
            operator_peak.COLD_POINTWISE: tuned({}, 10, {"timeout": 2}, 1.0),
            operator_peak.DEPTHWISE: tuned({}, 30, {}, 3.0),
        },
        "instruction_set": "avx512",
        "peak_samples": [99.0, 100.0],
    }
    return operator_peak.Results(**{**content, **changes})


def test_the_operators_figures(load: Any) -> None:
    figures = load("operator_peak").figures_of(operator_results(load))
    assert figures["pointwise_share_of_peak"].value == pytest.approx(0.4)
    assert figures["pointwise_share_of_peak_cold"].value == pytest.approx(0.3)
    assert figures["pointwise_share_of_peak_cold"].met is None
    assert figures["pointwise_share_of_peak_without_dense"].value == pytest.approx(0.8)
    assert figures["depthwise_vs_pytorch"].value == pytest.approx(2.0)
    assert figures["depthwise_vs_pytorch"].met is True
    assert figures["depthwise_vs_onnxruntime"].value == pytest.approx(1.0)
    assert figures["depthwise_vs_openvino"].value is None
    assert figures["depthwise_vs_best_peer"].value is None
    assert figures["candidate_ms"].value == pytest.approx(100.0)
    assert figures["candidate_ms"].met is True
    assert figures["failed_candidates"].value == 2


def test_the_fastest_peer_is_that_of_each_operator(load: Any) -> None:
    ratio, rows = load("operator_peak").depthwise_ratio, operator_results(load).depthwise
    assert ratio(rows, ["pytorch", "onnxruntime"]) == pytest.approx((1.0 * 0.5) ** 0.5)
    assert ratio([], ["pytorch"]) is None


def test_a_depthwise_operator_without_a_schedule_leaves_no_ratio(load: Any) -> None:
    figures = load("operator_peak").figures_of(operator_results(load, num_depthwise=3))
    assert figures["depthwise_vs_pytorch"].value is None
    assert figures["depthwise_vs_pytorch"].met is False


def test_no_operator_is_faster_than_the_peak(load: Any) -> None:
    assert operator_results(load).was_quiet
    disturbed = operator_results(load, peak_samples=[50.0, 50.0])
    assert not disturbed.was_quiet
    assert disturbed.peak_gflops == pytest.approx(80.0)
    assert not operator_results(load, peak_samples=[50.0, 50.0, 100.0]).was_quiet


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_peak_program_builds_and_reports(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    operator_peak = load("operator_peak")
    monkeypatch.setattr(operator_peak, "PEAK_S", 0.01)
    peak = operator_peak.FmaPeak(tmp_path)
    peak.sample()
    assert peak.instruction_set in {"avx512", "avx2", "neon"}
    assert len(peak.samples) == 9
    assert min(peak.samples) > 0


def layer_row(load: Any, name: str = "L4", **medians_s: float) -> Any:
    conv_layers, timing = load("conv_layers"), load("contenders").Timing
    names = {
        "plain": "chanas, plain",
        "winograd": "chanas, Winograd",
        "torch": "PyTorch",
        "torch_last": "PyTorch, channels last",
        "ort": "ONNX Runtime",
        "ov": "OpenVINO",
    }
    timings = {names.get(n, n): timing.of([s, s, s]) for n, s in medians_s.items()}
    return conv_layers.Row(name, conv_layers.layers()[name], timings, {})


def test_the_layers_are_those_of_the_papers_table_3(load: Any) -> None:
    layers = load("conv_layers").layers()
    assert list(layers) == [f"L{i}" for i in range(1, 19)]
    assert layers["L1"].key == "conv-224px-3x16-k3s1-relu-float32"
    assert layers["L10"].key == "blockconv-56px-40x80-k5s2-relu-float32"
    assert layers["L18"].key == "blockconv-14px-160x160-k7s1-relu-float32"
    assert {w.num_flops for w in layers.values() if w.input_size == 14} == {
        2 * 14**2 * 160**2 * k**2 for k in (3, 5, 7)
    }


def test_a_layer_of_channel_blocks_is_tuned_by_both_algorithms(load: Any) -> None:
    conv_layers = load("conv_layers")
    layers = conv_layers.layers()
    assert [w.op for w in conv_layers.algorithms(layers["L1"]).values()] == ["conv"]
    assert [w.op for w in conv_layers.algorithms(layers["L2"]).values()] == ["blockconv", "winograd"]


def test_the_figures_of_the_layers(load: Any) -> None:
    rows = [
        layer_row(load, "L4", plain=2e-3, winograd=1e-3, torch=3e-3, torch_last=2e-3, ort=4e-3, ov=1.5e-3),
        layer_row(load, "L6", plain=1e-3, torch=2e-3, torch_last=3e-3, ort=6e-3, ov=8e-3),
    ]
    figures = load("conv_layers").figures_of(rows, num_layers=2, peak=1000.0)
    assert figures["latency_reduction_percent"].value == pytest.approx(50)
    assert figures["latency_reduction_percent"].met is True
    assert figures["vs_best_peer"].value == pytest.approx((1.5 * 2) ** 0.5)
    assert figures["vs_pytorch"].value == pytest.approx(2)
    assert figures["mean_latency_ms"].value == pytest.approx(1)
    assert figures["plain_latency_reduction_percent"].value == pytest.approx(25)
    assert figures["plain_vs_best_peer"].value == pytest.approx((0.75 * 2) ** 0.5)
    assert 0 < figures["plain_share_of_peak"].value < 1


def test_a_layer_or_a_peer_that_is_missing_leaves_no_figure(load: Any) -> None:
    alone = [layer_row(load, plain=1e-3, torch=3e-3)]
    figures = load("conv_layers").figures_of(alone, num_layers=1, peak=1000.0)
    assert figures["latency_reduction_percent"].value == pytest.approx(200 / 3)
    assert figures["vs_best_peer"].value is None
    assert figures["vs_openvino"].value is None
    missing = load("conv_layers").figures_of(alone, num_layers=2, peak=1000.0)
    assert missing["latency_reduction_percent"].met is False
    assert missing["plain_share_of_peak"].value is None


def test_the_layers_are_drawn_the_same_each_time(load: Any, tmp_path: Path) -> None:
    rows = [layer_row(load, "L4", plain=1e-3, torch=3e-3, ov=2e-3), layer_row(load, "L6", plain=1e-3, torch=2e-3)]
    for name in ("first.svg", "again.svg"):
        load("conv_layers").draw(rows, tmp_path / name)
    drawn = (tmp_path / "first.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "again.svg").read_text(encoding="utf-8")
    assert "<svg" in drawn


def test_an_unknown_contender_is_an_error_with_its_reason(load: Any) -> None:
    contenders = load("contenders")
    with pytest.raises(contenders.ContenderError, match="no such peer: KeyError"):
        contenders.Contender("no such peer")


def test_contenders_take_turns_and_begin_in_turns(load: Any) -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, call: int, num_calls: int) -> float:
            order.append(self.name)
            return float(call)

    calls = {"a": (Fake("a"), 1), "b": (Fake("b"), 2)}
    timings = load("contenders").time_in_turns(calls, rounds=4, min_round_s=0.0)
    assert order[-8:] == ["a", "b", "b", "a"] * 2
    assert (timings["a"].median_s, timings["b"].median_s) == (1.0, 2.0)
    assert timings["a"].num_rounds == 4
