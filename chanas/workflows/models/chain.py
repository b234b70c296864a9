"""The chain from a finished network to one that runs fast: `Model.load(file).tune(trials=200).build().save(folder)`.

Each step gives an object that has only the step after it, so that no order but this one can be written. The seconds of
every step are kept under the run id that the first one draws.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas import __version__, interrupts
from chanas.core.effort import NetworkEffort
from chanas.core.progress import announce, named_wait
from chanas.core.units import format_latency
from chanas.core.usage import HERE, Usage
from chanas.devices.peak import peak_gflops
from chanas.errors import ConfigError, MeasureError, TargetError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.workflows.models.plan import own_target, plan_lines
from chanas.workflows.models.saving import SavedModel, operator_entries, write_folder
from chanas.workflows.models.watch import Watch

if TYPE_CHECKING:
    from chanas.bundle.tuned import TunedNetwork
    from chanas.compiler.cpu.module import ProgramModule
    from chanas.compiler.program import Program
    from chanas.core.arrays import Array
    from chanas.core.target import HardwareTarget
    from chanas.measuring.devices import HoldDevice
    from chanas.measuring.fleet import OpenPool
    from chanas.models.calibration.calibrate import Calibration
    from chanas.models.calibration.given import Given
    from chanas.models.calibration.mixed import Agreement
    from chanas.models.graph import Graph
    from chanas.models.proof.proving import Proof
    from chanas.models.proof.reference import Reference
    from chanas.models.sources.model import OpenedModel
    from chanas.prescheduler.program import Choices, TunedOperators
    from chanas.prescheduler.session import Session
    from chanas.workflows.models.layouts import LayoutSearch

    Calls = Sequence[Sequence[Array]]

DEFAULT_FOLDER, DEFAULT_EFFORT = Path("tuned"), NetworkEffort()


class Model:
    """The beginning of the chain: a finished network opened, or a tuned one."""

    @staticmethod
    def load(
        source: str | Path, shapes: Mapping[str, tuple[int, ...]] | None = None, weights: Path | None = None
    ) -> LoadedModel:
        """Open a network: an ONNX file, a program of `torch.export` (.pt2), `torchvision:NAME`, `timm:NAME`, a bundle.

        Args:
            shapes: of inputs by their names, where the file leaves them open.
            weights: of a network by name, a state dict; random ones without it.

        Raises:
            ModelError: it is missing, damaged, a pickle, too large, has open shapes, or operators that are not there;
                or opening it takes too much memory or time, or ends the process that does it.
            CheckpointError: the weights are missing, damaged, or those of another network; or a run has no bundle.
        """
        from chanas.models.folding import simplify
        from chanas.models.importing import import_network
        from chanas.models.reading.reader import read_graph

        watch = Watch(uuid.uuid4().hex, str(source))
        with watch.step("open"):
            opened = import_network(source, shapes, weights)
        with watch.step("read"):
            graph = read_graph(opened.proto, opened.inputs)
        with watch.step("simplify"):
            graph = simplify(graph)
        return LoadedModel(opened, graph, watch)

    @staticmethod
    def open(folder: str | Path) -> TunedNetwork:
        """Open a folder that `save` wrote; it needs neither torch nor onnx.

        Raises:
            CheckpointError: it is no such folder, or damaged.
        """
        from chanas.bundle.tuned import TunedNetwork

        return TunedNetwork.open(folder)


@dataclass(frozen=True)
class LoadedModel:
    """A network that was opened and simplified; `pictures` are the fields of `tuned.json` about them."""

    opened: OpenedModel
    graph: Graph
    watch: Watch
    pictures: Mapping[str, Any] = field(default_factory=lambda: {"preprocess": None, "class_names": None})

    @property
    def name(self) -> str:
        return self.opened.name

    def for_pictures(
        self, changes: Mapping[str, Any], labels: Path | None = None, *, to_calibrate: bool = False
    ) -> LoadedModel:
        """The network with what `save` keeps for `chanas predict`: how pictures are prepared (`preprocess_of`; as is
        known of the weights, where no preset is named), and the names of classes (by default a bundle's own).

        Args:
            to_calibrate: it may be no classifier, if there are no labels: pictures are what it is calibrated with.

        Raises:
            ConfigError: the network is no classifier of pictures, or the labels do not fit.
        """
        from chanas.bundle.classes import num_classes, read_labels
        from chanas.network.preprocess import check_crop, preprocess_of

        asked = changes
        if "preset" not in changes:
            changes = {**self.opened.pictures, **changes}
        nodes = [self.graph.node_of(read) for read in self.graph.outputs]
        inputs = [{"shape": facts.shape, "dtype": facts.dtype} for facts in self.graph.inputs]
        outputs = [{"shape": node.shape, "dtype": node.dtype} for node in nodes if node is not None]
        names = list(self.opened.class_names)
        if labels is not None or not to_calibrate:
            num = num_classes(self.name, inputs, outputs)
            names = names if labels is None else read_labels(labels, num, self.name)
        preprocess = preprocess_of(self.graph.inputs[0].shape, changes)
        check_crop(asked, preprocess)
        pictures = {"preprocess": preprocess.to_json() if changes else None, "class_names": names or None}
        return dataclasses.replace(self, pictures=pictures)

    def plan(
        self,
        target: Usage | str = HERE,
        *,
        effort: NetworkEffort = DEFAULT_EFFORT,
        run: RunDirectory | str | Path = DEFAULT_FOLDER,
        folder: Path | None = None,
        no_tuning: bool = False,
    ) -> list[str]:
        """The lines that `tune` prints before it begins, with the same arguments; nothing is written.

        Raises:
            ChanasError: as `tune` says.
        """
        from chanas.measuring.devices import timing_device
        from chanas.models.lowering import lower
        from chanas.prescheduler.tuning.tuners import check_effort
        from chanas.prescheduler.tuning.warm_start import open_prior
        from chanas.workflows.models.calibration import check_int8, quantised_graph

        check_effort(effort)
        place = run if isinstance(run, RunDirectory) else RunDirectory(run)
        if no_tuning:
            effort = _without_trials(effort, place)
        with timing_device(Usage(target) if isinstance(target, str) else target) as (hardware, open_pool):
            own = own_target(hardware, effort)
            has_pictures, is_here = effort.calibration is not None, open_pool is None
            quantised = quantised_graph(self.opened, hardware, has_pictures, is_here)
            if quantised is None:
                check_int8(hardware, effort, has_pictures, is_here)
            open_prior(effort.warm_start, place, own)
            program = lower((quantised or self).graph, own)
            return plan_lines(self.opened, program, hardware, effort, folder)

    def tune(
        self,
        target: Usage | str = HERE,
        trials: int | None = None,
        *,
        calibration: Calls | None = None,
        effort: NetworkEffort = DEFAULT_EFFORT,
        run: RunDirectory | str | Path = DEFAULT_FOLDER,
        progress: bool = True,
        folder: Path | None = None,
        hold: HoldDevice | None = None,
        no_tuning: bool = False,
    ) -> TunedModel:
        """Tune its operators; records lie in `run`, and every one that is there already is used again.

        First the whole network is built with the schedules of the records, of the warm start, or likely ones, and
        compared with the framework: what cannot be built is refused in seconds. That is the first result, and tuning
        only makes it better: once a minute the best schedules so far are built into a whole, compared and saved.

        Args:
            target: the processor and how it is used; the name of a device stands for one thread of it.
            trials: schedule points per operator on average, instead of those of `effort`.
            calibration: inputs to calibrate int8 with, instead of the pictures of `effort.calibration`.
            folder: where the best so far is saved; by default it is not.
            hold: gets hold of the device, here and in `build`; by default `timing_device`.
            no_tuning: make no trials; it is an error where an operator has no record of any that works.

        Raises:
            ConfigError: there is no such tuner, an operator has no record although nothing may be tuned, or in `folder`
                is something else than a tuned network.
            ModelError: its weights are more than a worker may hold, or the framework's own outputs are not finite.
            TargetError: the target is unknown, is a GPU, or has no kernels for finished networks in the dtype.
            MeasureError: it cannot be built, or is wrong, with the schedules that are known before tuning.
            RunBusyError: another process tunes with the same records.
        """
        from chanas.measuring.devices import timing_device
        from chanas.measuring.locks import device_lock
        from chanas.models.calibration.given import Given
        from chanas.models.lowering import lower
        from chanas.models.proof.reference import reference_of
        from chanas.models.quantised import lower_quantised
        from chanas.operators.precision import INT8
        from chanas.prescheduler.program import (
            TunedOperators,
            around,
            check_provable,
            first_choices,
            require_records,
        )
        from chanas.prescheduler.records.knobs import describe_knobs
        from chanas.prescheduler.records.store import RecordStore
        from chanas.prescheduler.session import open_session
        from chanas.prescheduler.tuning.tuners import check_effort
        from chanas.prescheduler.tuning.warm_start import open_prior
        from chanas.workflows.models.calibration import calibrated, quantised_graph
        from chanas.workflows.models.layouts import forms_of, tune_network

        begin_s = time.monotonic() - sum(self.watch.seconds.values())
        if trials is not None:
            effort = dataclasses.replace(effort, trials=trials)
        check_effort(effort)
        knobs = None if effort.knobs is None else describe_knobs(Path(effort.knobs))
        place = run if isinstance(run, RunDirectory) else RunDirectory(run)
        usage = Usage(target) if isinstance(target, str) else target
        watch = self.watch.copy()
        if no_tuning:
            effort = _without_trials(effort, place)
        with (hold or timing_device)(usage) as (hardware, open_pool):
            own = own_target(hardware, effort)
            has_pictures = calibration is not None or effort.calibration is not None
            quantised = quantised_graph(self.opened, hardware, has_pictures, is_here=open_pool is None)
            inputs = [] if quantised else self._calibration(hardware, effort, calibration, is_here=open_pool is None)
            prior = functools.cache(lambda device: open_prior(effort.warm_start, place, device))
            warm_start = prior(own)  # what is wrong with the name shows now
            with watch.step("lower"), named_wait(f"dividing {self.name} into operators", progress):
                numbers = None if quantised is None else lower_quantised(quantised, own, hardware)
                program = lower(self.graph, own) if numbers is None else numbers.program
            check_provable(program)
            plan = plan_lines(self.opened, program, hardware, effort, folder)  # what is wrong with knobs shows now
            if progress:
                announce(plan)
            with watch.step("answer"):
                reference = reference_of(self.opened, self.graph, effort.seed)
                if numbers is not None:  # of what the file rounds, some is not
                    reference = reference.rounded_to(INT8, len(program.tuned))
            peak = None
            if open_pool is None:  # elsewhere nothing but programs is timed
                with device_lock():
                    peak = peak_gflops(hardware.num_threads)
            with (
                one_writer(place.records),
                contextlib.closing(RecordStore(place.records, own)) as store,
                open_session(store, own, around(program), progress, open_pool) as session,
            ):
                if no_tuning:
                    require_records(program, own, store)
                first = first_choices(program, own, store, warm_start)
                known = TunedOperators(first)
                draft = TunedModel(self, usage, hardware, program, known, effort.seed, watch, reference, hold)
                draft = dataclasses.replace(draft, peak_gflops=peak, run=place, knobs=knobs)
                best = _BestSoFar(draft, session, folder)
                with watch.step("first build"), named_wait("building the network with likely schedules", progress):
                    built_s = best.begin()
                found: Calibration | Given | None = None
                if numbers is not None:
                    found = Given(numbers, reference.draws, hardware, session.pool, session.scratch, built_s)
                if inputs:
                    with watch.step("calibrate"):
                        found = calibrated(program, inputs, session, hardware, prior)
                        program = found.program
                minutes = math.inf if effort.minutes is None else effort.minutes
                after_s = built_s * (1 + 2 * (len(forms_of(hardware, effort)) > 1))
                after_s += 0.0 if found is None else found.measure_s
                with watch.step("tune"), interrupts.keeping(best.describe):
                    program, tuned, layouts = tune_network(
                        program,
                        session,
                        effort,
                        device=hardware,
                        prior=prior,
                        deadline_s=begin_s + 60.0 * minutes - after_s,
                        offer=best.offer,
                        calibration=found,
                    )
            agreement = None if layouts is None else layouts.joint.agreement
            made = dataclasses.replace(draft, program=program, tuned=tuned, layouts=layouts, watch=watch)
            made = dataclasses.replace(made, calibration=found, agreement=agreement)
            return dataclasses.replace(made, best=best.built, told=best.told)

    def _calibration(self, target: HardwareTarget, effort: NetworkEffort, given: Calls | None, is_here: bool) -> Calls:
        """The inputs that a network in int8 is calibrated with; none in another dtype.

        Raises:
            ConfigError, TargetError: as `check_int8`, or as `read_pictures`.
        """
        from chanas.workflows.models.calibration import check_int8, read_pictures

        check_int8(target, effort, effort.calibration is not None or given is not None, is_here)
        if given is not None or effort.calibration is None:
            return given or ()
        folder = Path(effort.calibration)
        return read_pictures(folder, self.graph, self.pictures["preprocess"], self.name)


def _without_trials(effort: NetworkEffort, place: RunDirectory) -> NetworkEffort:
    """The effort of taking schedules from the records of a run alone.

    Raises:
        ConfigError: there are none.
    """
    if not place.records.is_file():
        raise ConfigError(f"there are no records in {place.root} to take schedules from; leave out --no-tuning")
    return dataclasses.replace(effort, trials=0)


@dataclass(frozen=True)
class TunedModel:
    """A network whose operators have schedules.

    reference  the framework's answers, with which it is compared
    best       the fastest that was built on the way
    told       what became of an earlier network in the folder where that was saved
    peak_gflops  of this machine on as many cores (`devices/peak`); None elsewhere
    run, knobs   whose records it was tuned with; the file of knobs, if any, by name and hash
    layouts    the choice among several layouts, where they were asked for
    calibration, agreement  of a network that may be in int8: what its numbers stand for, and what it is worth
    """

    loaded: LoadedModel
    usage: Usage
    target: HardwareTarget
    program: Program
    tuned: TunedOperators
    seed: int
    watch: Watch
    reference: Reference
    hold: HoldDevice | None = None
    best: BuiltModel | None = None
    told: str = ""
    peak_gflops: float | None = None
    run: RunDirectory | None = None
    knobs: Mapping[str, str] | None = None
    layouts: LayoutSearch | None = None
    calibration: Calibration | Given | None = None
    agreement: Agreement | None = None

    def build(self) -> BuiltModel:
        """Compile the whole network, compare its outputs with those of the framework that it comes from, and time it.
        Where what was built on the way is faster, or alone right, that is the result.

        Raises:
            TargetError: the device elsewhere is another one than it was tuned on.
            MeasureError: it does not compile, or its outputs differ.
        """
        from chanas.measuring.devices import timing_device

        best, hold = self.best, self.hold or timing_device
        if best is not None and _schedules(best.tuned) == _schedules(self):
            return self._instead(best)
        with hold(self.usage) as (there, open_pool):
            if there.fingerprint != self.target.fingerprint:  # another device of the key than was held for tuning
                raise TargetError(
                    f"{self.loaded.name} was tuned on {self.target.device} ({self.target.fingerprint}), now there is "
                    f"{there.device} ({there.fingerprint}); give each kind of device a key of its own"
                )
            try:
                built = self.build_with(open_pool)
            except MeasureError as error:
                if best is None:
                    raise
                remark = f"the schedules that were found last do not work together ({error}); earlier ones are kept"
                return self._instead(best, remark)
        return self._instead(best) if best is not None and _is_faster(best, built) else built

    def _instead(self, best: BuiltModel, remark: str = "") -> BuiltModel:
        """The network that was built on the way, with the count of all trials."""
        before = best.tuned.tuned
        tuned = dataclasses.replace(self.tuned, choices=before.choices, tried={**before.tried, **self.tuned.tried})
        kept = dataclasses.replace(self, program=best.tuned.program, tuned=tuned, agreement=best.tuned.agreement)
        watch = self.watch.copy()
        watch.seconds.update((name, s) for name, s in best.watch.seconds.items() if name not in watch.seconds)
        return dataclasses.replace(best, tuned=kept, watch=watch, remark=remark)

    def build_with(self, open_pool: OpenPool | None) -> BuiltModel:
        """Build the network as `build` does, in workers that are there."""
        from chanas.compiler.cpu.module import program_module
        from chanas.files.scratch import scratch_folder
        from chanas.models.proof.proving import prove

        watch = self.watch.copy()
        with watch.step("build"):
            chosen = {key: (c.workload, c.point) for key, c in self.tuned.choices.items()}
            made = program_module(self.program, chosen, self.target)
        with watch.step("prove"), scratch_folder() as scratch:
            library = scratch / "module.so"
            proof = prove(made, self.reference, self.target, library, open_pool)
            return BuiltModel(self, made, proof, library.read_bytes(), watch)


def _is_faster(one: BuiltModel, other: BuiltModel) -> bool:
    """True if it is by more than the spread of their timings: schedules that were found later are better as far as
    that does not tell."""
    return one.proof.seconds + max(one.proof.spread_s, other.proof.spread_s) < other.proof.seconds


def _schedules(model: TunedModel) -> list[Any]:
    chosen = [(o.key, model.tuned.choices[o.key]) for o in model.program.tuned]
    return [(key, c.workload, tuple(c.point)) for key, c in chosen]


class _BestSoFar:
    """The fastest program of a network that was built while it is tuned, in its folder as soon as it is there."""

    def __init__(self, draft: TunedModel, session: Session, folder: Path | None) -> None:
        self._draft, self._session, self._folder = draft, session, folder
        self.built: BuiltModel | None = None
        self.told = ""

    def begin(self) -> float:
        """Build the network with the first schedules; returns the seconds that this takes. Where they do not work,
        those of each operator that nobody measured are tried alone, and the ones that work are taken.

        Raises:
            MeasureError: it cannot be built, or is wrong.
        """
        from chanas.prescheduler.program import working_choices

        start_s = time.monotonic()
        try:
            self._take(self._draft.tuned.choices)
        except MeasureError:
            draft, session = self._draft, self._session
            known = draft.tuned.choices
            choices = working_choices(session.target, known, session.pool, session.scratch)
            if choices == known:
                raise
            start_s = time.monotonic()
            self._take(choices)
        return time.monotonic() - start_s

    def offer(self, choices: Choices, program: Program, agreement: Agreement | None = None) -> None:
        """Build the network with other schedules; it is kept if it is right and faster."""
        with contextlib.suppress(MeasureError):  # schedules that do not work together: the last build tells
            self._take(choices, program, agreement)

    def _take(self, choices: Choices, program: Program | None = None, agreement: Agreement | None = None) -> None:
        from chanas.prescheduler.program import trials_of

        tried = trials_of(choices, self._session.target, self._session.store)
        tuned = dataclasses.replace(self._draft.tuned, choices=choices, tried=tried)
        draft = dataclasses.replace(self._draft, program=program or self._draft.program, tuned=tuned)
        draft = dataclasses.replace(draft, agreement=agreement)
        if self.built is not None and _schedules(self.built.tuned) == _schedules(draft):
            return
        built = draft.build_with(lambda _target: contextlib.nullcontext(self._session.pool))
        if self.built is None or not _is_faster(self.built, built):
            self.built = built
            if self._folder is not None:
                told = built.save(self._folder, keep_faster=True).told
                self.told = self.told or told

    def describe(self) -> str:
        """The words about what an interruption leaves."""
        num = self._session.store.num_added
        trials = "1 new trial" if num == 1 else f"{num} new trials"
        if self.built is None or self._folder is None:
            return trials
        return f"{trials} and, in {self._folder}, a network of {format_latency(self.built.proof.seconds)}"


@dataclass(frozen=True)
class BuiltModel:
    """A compiled network that gives the right outputs.

    remark  about schedules that were found and are not in it; empty without any
    """

    tuned: TunedModel
    made: ProgramModule
    proof: Proof
    library: bytes
    watch: Watch
    remark: str = ""

    @property
    def name(self) -> str:
        return self.tuned.loaded.name

    def save(self, folder: str | Path, *, keep_faster: bool = False) -> SavedModel:
        """Write the folder: compiled module, weights, and what it is; whole or not at all. Another network that is
        there is kept as `FOLDER.1`.

        Args:
            keep_faster: leave the same network there, of another tuning, if it is faster.

        Raises:
            ConfigError: there is something else than an earlier tuned network.
            ChanasError: it cannot be written.
        """
        document = _describe(self) | {"run": None}
        if self.tuned.run is not None:
            document["run"] = os.path.relpath(self.tuned.run.root.resolve(), Path(folder).resolve())
        told = write_folder(Path(folder), self.library, self.made, document, keep_faster=keep_faster)
        return SavedModel(Path(folder), told or self.tuned.told)


def _describe(built: BuiltModel) -> dict[str, Any]:
    """Content of `tuned.json` without hashes."""
    from chanas.bundle.tuned import SCHEMA, remark_of
    from chanas.compiler.backends import backend_of
    from chanas.core.target import tvm_version
    from chanas.prescheduler.program import activation_bytes, share_of_others, weight_bytes
    from chanas.workflows.models.calibration import int8_entry

    tuned, proof = built.tuned, built.proof
    opened, choices, peak = tuned.loaded.opened, tuned.tuned.choices, tuned.peak_gflops
    return {
        "schema": SCHEMA,
        "name": opened.name,
        "run_id": built.watch.run_id,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "origin": dict(opened.origin),
        "remark": remark_of(opened.origin),
        "target": tuned.target.to_json(),
        "space_version": backend_of(tuned.target).space_version,
        "seed": tuned.seed,
        "inputs": [{"name": i.name, "shape": list(i.shape), "dtype": i.dtype} for i in opened.inputs],
        "outputs": [
            {"name": opened.output_name(i), "shape": list(shape), "dtype": tuned.program.value(number).dtype}
            for i, (shape, number) in enumerate(zip(tuned.reference.output_shapes, tuned.program.outputs, strict=True))
        ],
        "operators": operator_entries(tuned.program, tuned.tuned, tuned.target, peak),
        **({} if tuned.layouts is None else {"layouts": tuned.layouts.to_json(tuned.program)}),
        **({} if tuned.calibration is None else {"int8": int8_entry(tuned.calibration, tuned.agreement)}),
        "others": dict(Counter(o.name for o in tuned.program.others)),
        "measured": {
            "latency_s": proof.seconds,
            "spread_s": proof.spread_s,
            "relative_error": proof.relative_error,
            "share_of_others": share_of_others(choices, tuned.program, proof.seconds),
            "weight_bytes": float(weight_bytes(tuned.program)),
            "activation_bytes": float(activation_bytes(tuned.program)),
        }
        | ({} if peak is None else {"peak_gflops": peak}),
        "knobs": tuned.knobs,
        "unproven": list(tuned.reference.unproven),
        "proof": {"draws": list(proof.draws), "outputs": [dataclasses.asdict(o) for o in proof.outputs]},
        **tuned.loaded.pictures,
        "probabilities": _ends_in_softmax(tuned.loaded.graph),
        "seconds": {name: round(seconds, 3) for name, seconds in built.watch.seconds.items()},
        "trials": {"new": tuned.tuned.num_new_trials, "failed": tuned.tuned.num_failed_trials},
        "versions": {"chanas": __version__, "tvm": tvm_version()},
    }


def _ends_in_softmax(graph: Graph) -> bool:
    """True if the first output is a softmax, whatever its shape is made."""
    node = graph.node_of(graph.outputs[0])
    while node is not None and node.op in ("reshape", "squeeze", "flatten"):
        node = graph.node_of(node.reads[0])
    return node is not None and node.op == "softmax"
