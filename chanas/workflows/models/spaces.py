"""`chanas space show`: the schedule spaces of an operator, or of all operators of a finished network."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.core.usage import DTYPES, GPU_DTYPES, SHORT_DTYPES
from chanas.devices.target_files import describe_target
from chanas.errors import ConfigError, ScheduleError, TargetError
from chanas.files.run import RunDirectory
from chanas.operators.keys import workload_of_key

if TYPE_CHECKING:
    from chanas.operators.workload import Workload
    from chanas.prescheduler.records.explored import ExploredSpace
    from chanas.report.spaces import TriedSpace

_A_KEY = "pointwise-14px-96x192-k1s1-relu-float32"


def spaces_of(
    what: str,
    target: str = "cpu",
    num_threads: int = 1,
    *,
    run: RunDirectory,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    knobs: Path | None = None,
) -> list[ExploredSpace]:
    """The spaces of an operator by its key, or of a finished network's operators, with what the run's records say.

    Args:
        what: a key such as `pointwise-14px-96x192-k1s1-relu-float32`, or a network as `Model.load` takes it.
        target: a target of this machine, or one that is described: nothing is run on it.
        shapes: of a network's inputs by their names, where its file leaves them open.
        knobs: a file that changes the spaces of processors (`compiler/knobs`).

    Raises:
        ConfigError: it is neither, or an operator and there are shapes; or the file of knobs is wrong.
        ScheduleError: the operator is not there on the target.
        ModelError: the network cannot be read.
        TargetError: the target is unknown, or a GPU while a network is asked for.
        CheckpointError: the run's records are damaged.
    """
    from chanas.compiler.knobs import changed_spaces, extended
    from chanas.prescheduler.records.explored import explored
    from chanas.prescheduler.records.sources import open_records

    try:
        workloads = [workload_of_key(what)]
        if shapes:
            raise ConfigError(f"--shape goes with a network, and {what} is an operator; leave it out")
        described = described_target(target, num_threads, workloads[0])
    except ScheduleError:
        if not Path(what).exists() and not Path(what).suffix and ":" not in what:
            raise ConfigError(
                f"expected the key of an operator, such as {_A_KEY}, or a network as FILE.onnx, FILE.pt2, "
                f"torchvision:NAME, timm:NAME or a bundle, got '{what[:80]}'"
            ) from None
        described = dataclasses.replace(describe_target(target), num_threads=num_threads)
        workloads = _of_network(what, described, shapes or {})
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(open_records(run.records)) if run.records.is_file() else None
        tried = {w: [] if known is None else known.tried(described, w.key) for w in workloads}
    spaces = changed_spaces(workloads, described, knobs)
    return [
        explored(space, described, [dataclasses.replace(r, point=extended(r.point, space)) for r in records])
        for space, records in zip(spaces, tried.values(), strict=True)
    ]


def write_page(spaces: Sequence[ExploredSpace], name: str, path: Path) -> None:
    """Write the figures of spaces as an HTML page: those of which points were tried that work.

    Raises:
        ConfigError: there are none.
        ChanasError: the page cannot be written.
    """
    from chanas.files.writing import replacing
    from chanas.report.pieces import document
    from chanas.report.spaces import space_sections

    tried = [drawable(space) for space in spaces if space.points]
    if not tried:
        raise ConfigError(f"the records have no point of {name} that works; tune it first, or name the run with --run")
    title = f"<h1>Schedule spaces of <code>{escape(name)}</code></h1>"
    with replacing(path) as temporary:
        temporary.write_text(document(f"Schedule spaces of {name}", [title, *space_sections(tried)]), encoding="utf-8")


def drawable(space: ExploredSpace) -> TriedSpace:
    """A space as the report draws it."""
    from chanas.report.spaces import TriedSpace

    knobs = tuple((knob.name, tuple(c.describe() for c in knob.candidates)) for knob in space.knobs)
    return TriedSpace(space.workload.key, knobs, space.points)


def described_target(name: str, num_threads: int, workload: Workload) -> HardwareTarget:
    """A target of this machine or one that is described, in the dtype and batch of an operator.

    Raises:
        TargetError: it is unknown, has no kernels in the dtype, or is a GPU with several threads.
    """
    target = dataclasses.replace(describe_target(name), num_threads=num_threads)
    if target.gpu is not None and num_threads != 1:
        raise TargetError(f"expected target {name} with 1 thread, got {num_threads}")
    if target.gpu is None:
        if workload.dtype not in DTYPES.values():
            raise TargetError(f"processors have no kernels in {workload.dtype}; name a GPU with --target")
        return dataclasses.replace(target, dtype=workload.dtype)
    if workload.dtype not in GPU_DTYPES.values():
        raise TargetError(f"GPUs have no kernels in {workload.dtype}; name a processor with --target")
    return in_batches(gpu_in_dtype(target, SHORT_DTYPES[workload.dtype]), workload.batch)


def _of_network(source: str, target: HardwareTarget, shapes: Mapping[str, tuple[int, ...]]) -> list[Workload]:
    """The operators that a finished network is tuned with, each once."""
    from chanas.models.lowering import lower
    from chanas.workflows.models.chain import Model

    if target.gpu is not None:
        raise TargetError(f"finished networks are tuned for processors; got target {target.name}")
    return lower(Model.load(Path(source) if Path(source).exists() else source, shapes).graph, target).workloads()
