"""What both workers call, in which order and how often, from the check of a program to its last timing: by a clock that
adds a millisecond at each call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.cases import ReferenceCase
from chanas.compiler.comparison import Draw, NetworkCase
from chanas.devices import timing
from chanas.devices.timing import Call, TimingSettings
from chanas.measuring.messages import Measure
from chanas.measuring.worker import cpu, cuda
from chanas.measuring.worker.timing import measure

SETTINGS = TimingSettings(repeats=2, min_repeat_s=2e-3, cold_bytes=160, code_copies=3)
CASE = ReferenceCase((np.ones((1, 4), np.float32), np.ones((4, 4), np.float32)), (1,), np.ones((1, 4), np.float32))
MODULE_CASE = NetworkCase(
    CASE.arguments[1:], [Draw("ones", CASE.arguments[:1], (CASE.expected,), (np.ones((1, 4), np.float32),))]
)


class Tensor:
    """A tensor on a device that is nowhere."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def copyfrom(self, values: Any) -> None:
        self.values = np.asarray(values)

    def numpy(self) -> Any:
        return self.values


class Told:
    """Calls as `LIBRARY.CODE/WEIGHTS`: copies of the code and of the weights are numbered as they first come up, and
    what a call leaves in its output is right but for that of library 1."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self._weights: list[Any] = []

    def function(self, library: str, code: int = 0) -> Any:
        def called(*arguments: Any) -> Any:
            weights = arguments[1]
            known = [w is weights for w in self._weights]
            self._weights += [] if any(known) else [weights]
            index = known.index(True) if any(known) else len(self._weights) - 1
            self.said.append(f"{library}.{code}/{index}")
            self.now += 1e-3
            value = Tensor(np.full((1, 4), 2.0 if library == "1" else 1.0, np.float32))
            if len(arguments) == 2:  # a module gives its output back
                return value
            arguments[-1].copyfrom(value.values)
            return None

        return called


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: told.now)
    monkeypatch.setattr(cpu, "_tensor", Tensor)
    monkeypatch.setattr(cpu, "_module_function", lambda library: told.function(library.stem))
    monkeypatch.setattr(
        cpu,
        "_load_functions",
        lambda library, copies: [told.function(library.stem, code) for code in range(copies)],
    )
    monkeypatch.setattr(cuda, "_copies", lambda: 3)
    return told


def request(folder: Path, **how: Any) -> Measure:
    (MODULE_CASE if how.get("form") == "module" else CASE).save(folder / "case.npz")
    library = folder if "num" in how else folder / "0.so"
    return Measure(library=library, case=folder / "case.npz", settings=SETTINGS, **how)


class Launches:
    """A device whose launches are told with a star where they are to find nothing in the cache."""

    def __init__(self, told: Told) -> None:
        self.told = told

    def tensor(self, array: Any) -> Any:
        return Tensor(array)

    def load(self, library: Path | str) -> Any:
        name = Path(library).stem
        return {"main": self.told.function(name), "new_output": lambda: Tensor(np.zeros((1, 4), np.float32))}

    def seconds(self, calls: Iterable[Call], cold: bool) -> float:
        before, start = len(self.told.said), self.told.now
        for function, arguments in calls:
            function(*arguments)
        self.told.said[before:] = [f"{name}{'*' if cold else ''}" for name in self.told.said[before:]]
        return self.told.now - start


ALONE: dict[str, Any] = {}
HOPELESS = {"hopeless_s": 1e-4}
IN_TURNS = {"num": 3}
NETWORK = {"form": "network"}
MODULE = {"form": "module"}

ON_A_PROCESSOR = [
    (ALONE, "0.0/0 | 0.0/0 0.1/1 0.2/2 | 0.0/0 0.1/1 0.2/2 | 0.0/0 0.1/1 | 0.2/2 0.0/0"),
    (HOPELESS, "0.0/0 | 0.0/0 0.1/1 0.2/2 | 0.0/0 0.1/1 0.2/2"),
    (
        IN_TURNS,
        "0.0/0 1.0/0 2.0/0 | 0.0/0 0.1/1 0.2/2 | 0.0/0 0.1/1 0.2/2 | 2.0/0 2.1/1 2.2/2 | 2.0/0 2.1/1 2.2/2 "
        "| 0.0/0 0.1/1 | 2.0/0 2.1/1 | 0.2/2 0.0/0 | 2.2/2 2.0/0",
    ),
    (NETWORK, "0.0/0 | 0.0/0 0.0/1 0.0/2 | 0.0/0 0.0/1 0.0/2 | 0.0/0 0.0/1 | 0.0/2 0.0/0"),
    (MODULE, "0.0/0 | 0.0/0 0.0/0 0.0/0 | 0.0/0 0.0/0 0.0/0 | 0.0/0 0.0/0 | 0.0/0 0.0/0"),
]
_SETTLED = " | " + " | ".join(["0.0/0", *["0.0/0 0.0/0 0.0/0 0.0/0 0.0/0"] * 3])
ON_A_GPU = [
    (ALONE, f"0.0/0 0.0/0{_SETTLED} | 0.0/0* | 0.0/0* 0.0/0* 0.0/0* | 0.0/0* 0.0/0* | 0.0/0* 0.0/0*"),
    (HOPELESS, f"0.0/0 0.0/0{_SETTLED} | 0.0/0* | 0.0/0* 0.0/0* 0.0/0*"),
    (
        IN_TURNS,
        f"0.0/0 0.0/0 1.0/1 1.0/1 2.0/2 2.0/2{_SETTLED} | 0.0/0* | 0.0/0* 0.0/0* 0.0/0* | 2.0/2* "
        "| 2.0/2* 2.0/2* 2.0/2* | 0.0/0* 0.0/0* | 2.0/2* 2.0/2* | 0.0/0* 0.0/0* | 2.0/2* 2.0/2*",
    ),
    (NETWORK, f"0.0/0 0.0/0{_SETTLED} | 0.0/0* | 0.0/0* 0.0/0* 0.0/0* | 0.0/0* 0.0/0* | 0.0/0* 0.0/0*"),
]


def in_order(calls: str) -> list[str]:
    """Names of calls; bars are for the eye: they part the check, warming up, the estimate and each repeat."""
    return calls.replace("|", "").split()


@pytest.mark.parametrize(("how", "calls"), ON_A_PROCESSOR, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_processor_calls(told: Told, tmp_path: Path, how: dict[str, Any], calls: str) -> None:
    measure(request(tmp_path, **how), cpu.Processor())
    assert told.said == in_order(calls)


def test_every_copy_of_the_code_is_called_where_there_are_more_than_of_the_weights(told: Told, tmp_path: Path) -> None:
    more = dataclasses.replace(request(tmp_path), settings=dataclasses.replace(SETTINGS, code_copies=5))
    measure(more, cpu.Processor())
    assert {call.partition("/")[0] for call in told.said} == {f"0.{i}" for i in range(5)}


@pytest.mark.parametrize(("how", "calls"), ON_A_GPU, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_gpu_launches(told: Told, tmp_path: Path, how: dict[str, Any], calls: str) -> None:
    measure(request(tmp_path, **how), cuda.GPU(lambda: Launches(told), lambda: told.now))
    assert told.said == in_order(calls)


def test_a_network_is_one_copy_on_a_gpu_and_always_cold(told: Told, tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    class Noting(Launches):
        def seconds(self, calls: Iterable[Call], cold: bool) -> float:
            launches = list(calls)
            seen.append((len(launches[0][1]), cold))
            return super().seconds(launches, cold)

    for how, num_weights, cold in ((ALONE, 3, False), (NETWORK, 1, True)):
        warm = dataclasses.replace(request(tmp_path, **how), settings=TimingSettings())
        measure(warm, cuda.GPU(lambda: Noting(told), lambda: told.now))
        assert seen[-1] == (1 + num_weights + 1, cold)  # beside weights an input and an output
