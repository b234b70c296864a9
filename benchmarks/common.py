"""What all benchmark scripts share: how a figure is judged, how a script ends, and facts about machine and versions.

Every script prints a readable table and then, as its last line, one JSON object
`{"figure": {"value": …, "goal": …, "met": true|false}, …}`. A full run also writes `benchmarks/results/NAME-KIND.json`
with versions, machine, date and whatever the script adds (seeds, rows of its table); a `--quick` run writes nothing.
KIND is the kind of machine (`amd-zen4`, `nvidia-h100`): results of another kind stand beside those that are there.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chanas.core.processor import Processor

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = (
    "apache-tvm",
    "apache-tvm-ffi",
    "torch",
    "numpy",
    "scikit-learn",
    "onnx",
    "onnxruntime",
    "openvino",
    "litert-torch",
    "ai-edge-litert",
    "xgboost-cpu",
    "lightgbm",
)
# Digits of a figure that are worth keeping: a timing never holds more.
_DIGITS = 4
_MAKERS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}

if importlib.util.find_spec("chanas") is None:  # a checkout that is not installed; worker processes need it too
    _ROOT = str(Path(__file__).resolve().parent.parent)
    sys.path.insert(0, _ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))


@dataclass(frozen=True)
class Figure:
    """One number that a script stands for. Without a goal it is there for information; without a value it is missing
    (a peer that is not installed, say), and a goal that nothing was measured for is not met."""

    value: float | None
    goal: float | None = None
    lower_is_better: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached (equal counts), or None when there is none."""
        if self.goal is None:
            return None
        if self.value is None or not math.isfinite(self.value):
            return False
        return self.value <= self.goal if self.lower_is_better else self.value >= self.goal

    def to_json(self) -> dict[str, Any]:
        return {"value": _plain(self.value), "goal": self.goal, "met": self.met}


def finish(
    name: str, figures: Mapping[str, Figure], quick: bool, extra: Mapping[str, Any], kind: str | None = None
) -> None:
    """Print the figures as the last line; on a full run first write them (`write_result`)."""
    if not quick:
        write_result(name, figures, extra, kind)
    print(json.dumps({key: figure.to_json() for key, figure in figures.items()}, allow_nan=False), flush=True)


def write_result(name: str, figures: Mapping[str, Figure], extra: Mapping[str, Any], kind: str | None = None) -> None:
    """Write `results/NAME-KIND.json`: figures, `extra` and the facts.

    `extra` must hold what repeats the run (seeds, options) and may hold the rows of the table. `kind` is that of the
    machine that was measured: this one's processor by default.
    """
    kind = kind or machine_kind()
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {
        "name": name,
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "figures": {key: figure.to_json() for key, figure in figures.items()},
        **_plain(dict(extra)),
    }
    result_path(name, kind).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def result_path(name: str, kind: str, suffix: str = ".json") -> Path:
    """Where the result of a script on a kind of machine lies, or a picture of it."""
    return RESULTS / f"{name}-{kind}{suffix}"


def read_result(name: str, kind: str) -> dict[str, Any]:
    """The last result of a script on a kind of machine.

    Raises:
        SystemExit: there is none; the message names the kinds that there are results of.
    """
    path = result_path(name, kind)
    if not path.is_file():
        known = ", ".join(sorted(read_results(name))) or "none"
        raise SystemExit(
            f"expected a result of {name} on {kind}, got results on: {known}; run the script that writes it there"
        )
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def read_results(name: str) -> dict[str, dict[str, Any]]:
    """The last result of a script on each kind of machine that there is one of."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob(f"{name}-*.json"))
    return {content["kind"]: content for content in found if content["name"] == name}


def _plain(value: Any) -> Any:
    """JSON without NaN or infinity (null instead), floats cut to the digits that mean something."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | str) else _plain(float(value))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values; NaN of none."""
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else math.nan


def versions() -> dict[str, str]:
    """Installed versions of what figures depend on; packages that are not there are left out."""
    found = {"chanas": str(importlib.import_module("chanas").__version__), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """CPU and GPU by name, cores that this process may use, and how busy the machine is right now."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {
        "cpu": _cpu_name(),
        "gpu": _gpu_name(),
        "cores": os.cpu_count(),
        "cores_used": cores,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def machine_kind(gpu: str | None = None) -> str:
    """Maker and microarchitecture of this machine's processor: `amd-zen4`. With the name of a GPU that was measured
    beside it, of both: `amd-zen4-nvidia-h100`; used up to older vectors than it has, with these: `amd-zen4-avx2`."""
    from chanas.core.processor import MAX_ISA, whole_processor

    kind = "-".join(filter(None, (processor_kind(whole_processor()), os.environ.get(MAX_ISA))))
    return kind if gpu is None else f"{kind}-{gpu_kind(gpu)}"


def processor_kind(processor: Processor) -> str:
    """Maker and microarchitecture of a processor, by what it can do: a hypervisor may make model numbers up, but not
    instructions."""
    maker = "" if processor.vendor == "generic" else _MAKERS.get(processor.vendor, processor.vendor.lower())
    words = re.findall(r"[a-z0-9.]+", f"{maker} {processor.microarchitecture}".lower())
    return "-".join(words)


def gpu_kind(name: str) -> str:
    """A GPU by its own name, without its memory: `NVIDIA H100 80GB HBM3` is `nvidia-h100`."""
    words = re.findall(r"[a-z0-9.]+", name.lower())
    kept = [word for word in words if not re.fullmatch(r"\d+gb|hbm\w*", word)]
    return "-".join(kept if kept[:1] == ["nvidia"] else ["nvidia", *kept])


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = fields.get("model name", platform.machine())
    numbers = [fields[k] for k in ("cpu family", "model", "stepping") if k in fields]
    return f"{name} (family {'/'.join(numbers)})" if numbers else name


def _gpu_name() -> str | None:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return output.strip().splitlines()[0] if output.strip() else None
