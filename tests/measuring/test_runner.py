"""chanas/measuring/runner.py: on whatever a request runs, what goes wrong with it is an answer; what is lost is looked
for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import chanas
from chanas.core.codec import to_json
from chanas.core.usage import Place, Usage
from chanas.devices.cores import split_cores
from chanas.errors import TargetError
from chanas.measuring.messages import Answer, ErrorKind, Request, WorkerError
from chanas.measuring.remote.device import RemoteDevice
from chanas.measuring.remote.link import Connect, Submit
from chanas.measuring.runner import look_for
from chanas.measuring.shared.turns import Ask
from chanas.measuring.worker.process import WorkerProcess
from chanas.testing.runners import Run, RunnerContract

from ..compiler.workbench import HOST, plant_worker
from .worker.test_process import NO_COMPILER

# What dask itself leaves open or warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
FACTS = {"tvm": "1", "llvm_cpu": "znver4", "machine": "x86_64"}


class Through:
    """Stands where the link to a device stands, which is a process of this machine."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker, self.stop, self.close = worker, worker.stop, worker.close

    def call(self, request: Request, timeout_s: float) -> Answer:
        if isinstance(request, Submit):
            return Answer.of(to_json(self.worker.call(request.request, request.timeout_s)))
        device = {**FACTS, "target": HOST.to_json(), "chanas": chanas.__version__, "boot": "other"}
        found = {"device": device, "num_devices": 1, "num_free": 0}
        return Answer.of(found if isinstance(request, Connect) else {**FACTS, "boot": "b", "llvm_targets": []})


def process() -> WorkerProcess:
    return WorkerProcess(1, split_cores(1)[0], ("-c", NO_COMPILER))


@contextlib.contextmanager
def by_process() -> Iterator[Run]:
    with contextlib.closing(process()) as worker:
        yield worker.call


@contextlib.contextmanager
def by_device() -> Iterator[Run]:
    def link() -> Any:
        return Through(process())

    with contextlib.closing(RemoteDevice(Usage(place=Place("tracker:1", "pi4")), link=link)) as device:
        device.connect()
        yield device.call


@contextlib.contextmanager
def by_cluster() -> Iterator[Run]:
    from .shared.test_cluster import QUICK, cluster_of

    with pytest.MonkeyPatch.context() as patch:
        plant_worker(patch, "llvm", QUICK)
        with cluster_of(1, processes=False) as (cluster, _):
            yield lambda request, timeout_s: cluster.answer(
                Ask(number=0, times=False, timeout_s=timeout_s, request=request)
            )


WAYS = {"process": by_process, "device": by_device, "cluster": by_cluster}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
class TestRunners(RunnerContract):
    @pytest.fixture(autouse=True)
    def chosen(self, way: Callable[[], AbstractContextManager[Run]]) -> None:
        self.opened = way  # type: ignore[method-assign]


# ---- what is lost ---------------------------------------------------------------------------------------------------
class Away:
    """A runner that is there again after some looks, which find that out."""

    def __init__(self, *looks: WorkerError | Exception | None) -> None:
        self.looks, self.is_there = list(looks), False

    def restore(self) -> WorkerError | None:
        look = self.looks.pop(0)
        if isinstance(look, Exception):
            raise look
        self.is_there = look is None
        return look


BUSY = WorkerError(ErrorKind.BUSY, "in use")


def test_what_is_lost_is_looked_for_until_it_is_there_whatever_comes_in_between() -> None:
    reasons: list[str] = []
    away: Any = Away(BUSY, TargetError("of another kind"), OSError("no route"), None, None)
    assert look_for(away, lambda reason: reasons.append(str(reason)) is None)
    assert reasons == ["busy: in use", "TargetError: of another kind", "OSError: no route"]
    assert len(away.looks) == 1


def test_what_is_there_is_not_looked_for_and_whoever_gives_up_is_told_so() -> None:
    away: Any = Away(BUSY, None)
    assert not look_for(away, lambda _reason: False)
    away.is_there = True
    assert look_for(away, lambda _reason: False)
    assert len(away.looks) == 1
