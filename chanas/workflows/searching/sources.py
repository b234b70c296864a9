"""Sources of accuracies, a supernet or a file, with what depends on them: how finalists are proven, and what a bundle
says of its weights."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Float32Array, IntArray
from chanas.core.blocks import BlockConfig
from chanas.core.progress import named_wait
from chanas.core.statistics import spread
from chanas.core.task import Task
from chanas.errors import DataError
from chanas.files.run import RunDirectory
from chanas.models.calibration.ranges import MOST_INPUTS
from chanas.operators.precision import INT8
from chanas.search.target import SearchTarget
from chanas.workflows.searching.agreement import check_module
from chanas.workflows.searching.modules import keep_module, take_module
from chanas.workflows.searching.targets import table_path
from chanas.workflows.stages.stored import SUPERNET, is_published, load_supernet, stored_task, supernet_task
from chanas.workflows.stages.tables import open_table

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.measuring.messages import Outcome
    from chanas.network.static import StaticNetwork
    from chanas.prescheduler.tables.networks import NetworkJob
    from chanas.search.accuracy.table import AccuracyTable
    from chanas.search.learning import Source
    from chanas.search.proof import Proof
    from chanas.supernet.training.evaluate import SupernetEvaluator

_SEED = 0


class AccuracySource(abc.ABC):
    """A source of accuracies, as searches take it; nothing is loaded for it before it is first asked.

    run    the run directory that the results of searches go to
    table  the accuracies, if they are given and not evaluated
    """

    def __init__(self, run: RunDirectory, table: AccuracyTable | None = None) -> None:
        self.run, self.table = run, table

    @property
    @abc.abstractmethod
    def task(self) -> Task:
        """The space, and the number of classes."""

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """Hash of the weights, or of the file."""

    @property
    def num_images(self) -> int | None:
        """Images that an accuracy is counted on; None where accuracies are given."""
        return None

    @abc.abstractmethod
    def top1(self, architecture: Architecture) -> float:
        """Accuracy in [0, 1], on holdout or in the table; NaN if that does not know it."""

    def judge(self, finalists: Sequence[Architecture]) -> list[float]:
        """`top1` of each, which is not evaluated again where an earlier search of the run did."""
        return [self.top1(a) for a in finalists]

    @abc.abstractmethod
    def case(self, architecture: Architecture, batch: int) -> tuple[Any, Any, Any]:
        """A network to compile: parameters by name of each block, `batch` images float32[B, 3, R, R], and PyTorch's
        logits on them."""

    def calibration_images(self, architecture: Architecture) -> Float32Array | None:
        """Images float32[N, 3, R, R] that a network in int8 is calibrated with; None where weights are random."""
        return None

    def holdout(self, architecture: Architecture) -> tuple[Float32Array, IntArray]:
        """Images float32[N, 3, R, R] of holdout and their labels [N], as the network takes them; none without any."""
        size = architecture.resolution
        return np.zeros((0, self.task.space.in_channels, size, size), np.float32), np.zeros(0, np.int64)

    @abc.abstractmethod
    def tensors(self, architecture: Architecture) -> dict[str, Any] | None:
        """float32 PyTorch parameters by name, for the bundle; None: it has no weights."""

    @abc.abstractmethod
    def document(self, winner: Proof) -> dict[str, Any]:
        """Entries of a bundle about the accuracies and the weights: `class_names`, `preprocess`, `measured`, `seeds`,
        `hashes`."""

    @abc.abstractmethod
    def test(self, bundle: CoDesign, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Accuracy of a bundle's module on test images, and its agreement with PyTorch, for its entry of the target.

        Args:
            known: what such a test of the very same module and weights gave before, which is not repeated.
        """

    def prover(self, targets: Sequence[SearchTarget], scratch: Path, progress: bool = True) -> Prover:
        """Prover of finalists on all of `targets`; modules are left in `scratch`."""
        return Prover(self, targets, scratch, progress)

    def accuracies(self) -> Source:
        """The accuracies as the search stage takes them."""
        from chanas.search.learning import Source

        return Source(self.run, self.digest, self.top1, self.table, self.num_images)


@dataclass
class Prover:
    """Compiles finalists whole, compares them with PyTorch and measures them on every target; their accuracy is that of
    the source, or where they compute with rounded numbers as they compute there.

    top1_float32  of finalists, by the source
    """

    source: AccuracySource
    targets: Sequence[SearchTarget]
    scratch: Path
    progress: bool = True
    top1_float32: dict[Architecture, float] = field(default_factory=dict)
    _calibrated: dict[Architecture, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def rounding(self) -> SearchTarget:
        """The target whose numbers are rounded the most: the first in int8, or else the first of all."""
        return next((t for t in self.targets if t.hardware.dtype == INT8.dtype), self.targets[0])

    def rounds(self, architecture: Architecture) -> bool:
        """True if an architecture's accuracy is that of what is compiled: blocks are in int8, or in several dtypes."""
        return bool(architecture.dtypes) or self.rounding.hardware.dtype == INT8.dtype

    def library(self, architecture: Architecture, target: SearchTarget) -> Path:
        """Path of the compiled module of a proven architecture."""
        return self.scratch / f"{architecture.key}.{target.name}.so"

    def jobs(self, architectures: Sequence[Architecture]) -> dict[Architecture, NetworkJob]:
        """Networks to compile, with enough images for each of the targets; calibrated where blocks are in int8."""
        from chanas.prescheduler.tables.networks import NetworkJob

        batch = max(target.hardware.batch for target in self.targets)
        found = {}
        for a in architectures:
            parameters, images, logits = self.source.case(a.plain, batch)
            parameters = self._with_grids(a, parameters)
            found[a] = NetworkJob(self._blocks(a), parameters, images, logits, self.library(a, self.targets[0]))
        return found

    def tensors(self, architecture: Architecture) -> dict[str, Any] | None:
        """float32 PyTorch parameters by name, for the bundle; None: it has no weights. Where blocks are in int8, what
        their numbers stand for is among them."""
        from chanas.network.folding import split_tensors

        found = self.source.tensors(architecture.plain)
        if found is None:
            return found
        whole = self._with_grids(architecture, split_tensors(found, self._blocks(architecture)))
        return {f"blocks.{i}.{name}": value for i, own in enumerate(whole) for name, value in own.items()}

    def _blocks(self, architecture: Architecture) -> tuple[BlockConfig, ...]:
        return architecture.blocks(self.source.task.space, self.source.task.num_classes)

    def _with_grids(self, architecture: Architecture, parameters: Any) -> Any:
        """Parameters of each block with those of int8; as they are where none is, or there are no images to calibrate
        with."""
        from chanas.compiler.emulation import has_int8
        from chanas.models.calibration.blocks import calibrated_blocks

        blocks, dtype = self._blocks(architecture), self.rounding.hardware.dtype
        if not has_int8(blocks, dtype):
            return parameters
        if architecture not in self._calibrated:
            images = self.source.calibration_images(architecture.plain)
            if images is None:
                return parameters
            self._calibrated[architecture] = calibrated_blocks(blocks, parameters, images, dtype)
        return self._calibrated[architecture]

    def measure(self, target: SearchTarget, jobs: Mapping[Architecture, NetworkJob]) -> dict[Architecture, Outcome]:
        """Compile networks with the schedules of a target's table, check them, and time them there in turns. Those that
        the run has compiled before are only checked and timed."""
        from chanas.prescheduler.tables.networks import compile_networks, module_digest

        def digest_of(job: NetworkJob) -> str:
            return module_digest(target.lut, target.hardware, job.blocks)

        run, here = self.source.run, []
        for architecture, job in jobs.items():
            library = self.library(architecture, target)
            is_built = take_module(run, digest_of(job), library)
            here.append(replace(job, library=library, is_built=is_built))
        outcomes = compile_networks(target.lut, target.hardware, here, self.progress, target.open_pool)
        for job, outcome in zip(here, outcomes, strict=True):
            if outcome.error is None:  # schedules that failed have been replaced in the table, hence the hash by now
                keep_module(run, digest_of(job), job.library)
        return dict(zip(jobs, outcomes, strict=True))

    def __call__(self, architectures: Sequence[Architecture]) -> list[Proof]:
        with named_wait("evaluating the finalists", self.progress):
            jobs = self.jobs(architectures)
            top1 = dict(zip(architectures, self.source.judge([a.plain for a in architectures]), strict=True))
        self.top1_float32 |= top1
        measured = {target.name: self.measure(target, jobs) for target in self.targets}
        works = measured[self.rounding.name]
        rounded = [a for a in architectures if self.rounds(a) and works[a].error is None]
        with named_wait("evaluating the finalists as they compute", self.progress and bool(rounded)):
            top1 |= {a: self._top1_as_compiled(a, jobs[a], top1[a]) for a in rounded}
        return [
            make_proof(a, {name: outcomes[a] for name, outcomes in measured.items()}, top1[a]) for a in architectures
        ]

    def _top1_as_compiled(self, architecture: Architecture, job: NetworkJob, known: float) -> float:
        """Top-1 on holdout of the compiled network, or of an emulation where it is for a device elsewhere; where there
        are no images the known one."""
        from chanas.bundle.runtimes import compiled_network
        from chanas.compiler.emulation import emulated_logits
        from chanas.network.folding import packed_parameters

        target = self.rounding
        images, labels = self.source.holdout(architecture.plain)
        if not len(images):
            return known
        if target.open_pool is None and not target.elsewhere:
            packed = packed_parameters(job.blocks, job.parameters, target.hardware)
            library, classes = self.library(architecture, target), self.source.task.num_classes
            run = compiled_network(library, packed, images.shape[1:], classes, target.hardware)
            logits = np.stack([run(image) for image in images])
        else:
            logits = emulated_logits(job.blocks, job.parameters, images, target.hardware.dtype, exact=True)
        return float((logits.argmax(1) == labels).mean())


def make_proof(architecture: Architecture, outcomes: Mapping[str, Outcome], top1: float) -> Proof:
    """The proof of a finalist from its compilation and measurement on each target, by name, and its top-1 in [0, 1]
    (NaN: unknown)."""
    from chanas.search.proof import Proof, Timing

    timings, max_error = [], 0.0
    for name, outcome in outcomes.items():
        if outcome.seconds is None:
            where = f"on {name}: " if len(outcomes) > 1 else ""
            return Proof(architecture, error=f"{where}{outcome.error}")
        timings.append(Timing(name, outcome.seconds, outcome.spread_s or 0.0))
        max_error = max(max_error, outcome.max_error or 0.0)
    return Proof(architecture, tuple(timings), top1, max_error)


class SupernetSource(AccuracySource):
    """A run's supernet, which is loaded with the first question about its weights: after the limits have been found in
    reach."""

    @functools.cached_property
    def task(self) -> Task:
        """Raises StageOrderError: there is no supernet; the message names the command that makes it."""
        return Task(*supernet_task(self.run))

    @functools.cached_property
    def supernet(self) -> SupernetEvaluator:
        return load_supernet(self.run)

    @functools.cached_property
    def _extract(self) -> Callable[[Architecture], StaticNetwork]:
        """A sub-network with BN statistics of its own, whose images pass once for the finalist and for the winner."""
        return functools.lru_cache(maxsize=8)(self.supernet.extract)

    @property
    def digest(self) -> str:
        return self.supernet.digest

    @property
    def num_images(self) -> int | None:
        return len(self.supernet.data.indices("holdout"))

    def top1(self, architecture: Architecture) -> float:
        return self.supernet.top1(architecture, "holdout")

    def judge(self, finalists: Sequence[Architecture]) -> list[float]:
        """Evaluations that train no predictor, so that the same search finds the same network again: they are in a file
        of its own, `search/finalists.jsonl`."""
        from chanas.search.accuracy.evaluations import EvaluationStore

        source = self.accuracies()
        if source.table is not None:
            return super().judge(finalists)
        known = source.evaluations(self.task.space).found
        path = self.run.search / "finalists.jsonl"
        store = EvaluationStore(path, self.task.space, self.digest, self.top1)
        return [(known.get(a.key) or store.evaluate(a, "finalist")).top1 for a in finalists]

    def case(self, architecture: Architecture, batch: int) -> tuple[Any, Any, Any]:
        """With the first images of holdout; if there are fewer than a batch has, they are repeated, and if there are
        none, they are random."""
        import torch

        from chanas.network.folding import split_tensors
        from chanas.network.static import parameters_by_name

        network = self._extract(architecture)
        images, _ = self.supernet.images("holdout", architecture.resolution, batch)
        shape = (batch, *images.shape[1:])
        if len(images):
            images = np.resize(images, shape)
        else:
            images = np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)
        with torch.inference_mode():
            logits = network(torch.from_numpy(images)).numpy()
        blocks = architecture.blocks(self.task.space, self.task.num_classes)
        return tuple(split_tensors(parameters_by_name(network), blocks)), images, logits

    def accuracies(self) -> Source:
        rounded = self.top1_rounded if self.num_images else None
        return replace(super().accuracies(), evaluate_rounded=rounded)

    def top1_rounded(self, architecture: Architecture, split: str = "holdout") -> float:
        """Accuracy in [0, 1] on a split of an architecture whose blocks are in several dtypes, numbers rounded as they
        are there. What those in int8 stand for is calibrated once for all dtypes of an architecture, as if all blocks
        were in it."""
        from chanas.compiler.emulation import emulated_logits

        blocks = architecture.blocks(self.task.space, self.task.num_classes)
        images, labels = self.supernet.images(split, architecture.resolution)
        logits = emulated_logits(blocks, self._in_int8(architecture.plain), images)
        return float((logits.argmax(1) == labels).mean())

    @functools.cached_property
    def _in_int8(self) -> Callable[[Architecture], Sequence[Mapping[str, Any]]]:
        """Parameters of each block of an architecture, calibrated for int8; those of the last one are kept."""
        from chanas.models.calibration.blocks import calibrated_blocks

        def calibrated(architecture: Architecture) -> Sequence[Mapping[str, Any]]:
            parameters, _, _ = self.case(architecture, 1)
            blocks = architecture.blocks(self.task.space, self.task.num_classes)
            return calibrated_blocks(blocks, parameters, self.calibration_images(architecture), INT8.dtype)

        return functools.lru_cache(maxsize=1)(calibrated)

    def calibration_images(self, architecture: Architecture) -> Float32Array:
        """Train images, spread over all of them.

        Raises:
            DataError: there are none.
        """
        train = self.supernet.data.indices("train")
        if not len(train):
            raise DataError(
                "networks in int8 are calibrated with train images, and the supernet has none; import it with --images "
                "FOLDER"
            )
        return self.supernet.data.images(train[spread(len(train), MOST_INPUTS)], architecture.resolution)

    def holdout(self, architecture: Architecture) -> tuple[Float32Array, IntArray]:
        return self.supernet.images("holdout", architecture.resolution)

    def tensors(self, architecture: Architecture) -> dict[str, Any]:
        """BN statistics are recalibrated."""
        from chanas.network.static import parameters_by_name

        return parameters_by_name(self._extract(architecture))

    def document(self, winner: Proof) -> dict[str, Any]:
        supernet = self.supernet
        return {
            "class_names": list(supernet.class_names),
            "preprocess": supernet.preprocess(winner.architecture.resolution).to_json(),
            "measured": {"top1_holdout": winner.top1_holdout},
            "seeds": {"supernet": SUPERNET.read_with(self.run.supernet / "checkpoint.json", lambda data: data["seed"])},
            "hashes": {"supernet": supernet.digest, "splits": supernet.data.splits.digest},
        }

    def test(self, bundle: CoDesign, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return check_module(bundle, self.supernet, known)


class TableSource(AccuracySource):
    """Accuracies of a file; networks are compiled with random weights, and bundles have none."""

    def __init__(self, run: RunDirectory, task: Task, table: AccuracyTable) -> None:
        super().__init__(run, table)
        self._task, self._digest = replace(task, left_out=table.unknown), table.digest
        self._known = dict(zip(table.architectures, table.top1.tolist(), strict=True))

    @property
    def task(self) -> Task:
        return self._task

    @property
    def digest(self) -> str:
        return self._digest

    def top1(self, architecture: Architecture) -> float:
        return float(self._known.get(architecture, math.nan))

    def case(self, architecture: Architecture, batch: int) -> tuple[Any, Any, Any]:
        """With random weights and images."""
        from chanas.compiler.cases import random_network

        return random_network(architecture.blocks(self.task.space, self.task.num_classes), _SEED, batch)

    def tensors(self, architecture: Architecture) -> None:
        return None

    def document(self, winner: Proof) -> dict[str, Any]:
        return {
            "class_names": [str(i) for i in range(self.task.num_classes)],
            "preprocess": None,
            "measured": {"top1_table": self._known.get(winner.architecture)},
            "seeds": {},
            "hashes": {"accuracy_table": self.digest},
        }

    def test(self, bundle: CoDesign, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {}


class PublishedSource(SupernetSource):
    """Accuracies of a file for a published supernet, whose weights the bundles have."""

    def __init__(self, run: RunDirectory, task: Task, table: AccuracyTable) -> None:
        super().__init__(run, table)
        self._file = TableSource(run, task, table)

    @functools.cached_property
    def task(self) -> Task:
        return self._file.task

    @property
    def digest(self) -> str:
        return self._file.digest

    @property
    def num_images(self) -> None:
        return None

    def top1(self, architecture: Architecture) -> float:
        return self._file.top1(architecture)

    def document(self, winner: Proof) -> dict[str, Any]:
        """`recalibrated` tells whether BN statistics are the network's own."""
        of_file, of_supernet = self._file.document(winner), super().document(winner)
        return {
            **of_supernet,
            "measured": of_file["measured"],
            "hashes": {**of_supernet["hashes"], **of_file["hashes"]},
            "recalibrated": self.supernet.recalibrates,
        }


@dataclass(frozen=True)
class AccuracyFile:
    """A CSV file of accuracies (docs/formats.md), and the space and number of classes that it is of: those of the
    latency table where nothing is said."""

    path: Path | str
    space: str | Path | None = None
    num_classes: int | None = None


Accuracies = AccuracyFile | Path | str


def open_source(run: RunDirectory, accuracies: Accuracies | None = None, target: str = "cpu") -> AccuracySource:
    """The run's supernet; or a CSV file of accuracies, of the space that it names or that the run's latency table of
    `target` is of, with the weights of a published supernet where the run has one of that space.

    Raises:
        StageOrderError: there is no latency table.
        DataError: the file cannot be used.
        LUTError: the space of the latency table is not at hand.
    """
    if accuracies is None:
        return SupernetSource(run)
    from chanas.search.accuracy.table import load_accuracy_table

    file = accuracies if isinstance(accuracies, AccuracyFile) else AccuracyFile(accuracies)
    space = None if file.space is None else SearchSpace.load(file.space)
    named = None if space is None or file.num_classes is None else Task(space, file.num_classes)
    opened = open_table(table_path(run, target, named), space=file.space, num_classes=file.num_classes)
    task = Task(opened.required_space(), opened.num_classes)
    table = load_accuracy_table(file.path, task.space)
    if is_published(run) and stored_task(run) == (task.space, task.num_classes):
        return PublishedSource(run, task, table)
    return TableSource(run, task, table)
