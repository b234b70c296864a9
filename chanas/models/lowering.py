"""A simplified graph lowered to a program: which operators are tuned, and in which form values lie in memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.backends import backend_of, schedule_space
from chanas.compiler.program import (
    Emit,
    Form,
    OtherOperation,
    Program,
    TunedOperation,
    Value,
    packed_constant,
    tiled_rows,
)
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.models import others
from chanas.models.attention.kernel import emit_attention
from chanas.models.attention.naming import name_attention
from chanas.models.elementwise import ELEMENTWISE
from chanas.models.fusion import Chain, find_chains, keeps_rows
from chanas.models.graph import Constant, Graph, Node, Read, numbered, per_channel
from chanas.models.pools import window_pool
from chanas.models.views import view_maps
from chanas.operators.steps import Step
from chanas.operators.workload import WINOGRAD, Workload, winograd_counts

_BLOCKED_TYPES = ("float32", "bool")
# Images of fewer channels than this are read as they are: in channel blocks most lanes would be empty.
MAX_IMAGE_CHANNELS = 8
# Multiplications of the plain sum for each of Winograd's: of 3×3 kernels 2 on wide maps, 1.75 on 7×7, 1.25 on 5×5.
_LEAST_SAVED = 1.5
# Multiply-adds that a core does while it reads a byte of weights: 60 and 40 billion a second on Zen 4, where reading
# ahead hides a part. 3×3 kernels save 6 on 14×14, 1.5 on 7×7 (1.2 times as fast there at 512 channels), 0.5 on 5×5.
_LEAST_SAVED_PER_BYTE = 1.0


def with_outputs(program: Program, numbers: Sequence[int], target: HardwareTarget) -> Program:
    """A program that gives these of its values back, as the framework has them."""
    made = dataclasses.replace(program, operations=list(program.operations))

    def given(number: int) -> int:
        value = made.value(number)
        if not value.blocked:
            return number
        in_float32 = Form(value.lanes)
        if value.form != in_float32:
            number = made.add(others.in_form(number, value, in_float32, target, program.grids.get(number)))
        return made.add(_in_form(number, made.value(number), 0))

    made.outputs = tuple(map(given, numbers))
    return made


def _in_form(number: int, value: Value, lanes: int) -> OtherOperation:
    """The change of a value to channel blocks of these lanes, or of one in blocks to a plain one (0)."""
    other = dataclasses.replace(value, lanes=lanes)
    emit: Emit = functools.partial(others.pack, value=other) if lanes else functools.partial(others.unpack, value=value)
    return OtherOperation("to channel blocks" if lanes else "from channel blocks", (number,), other, emit, True)


def lower(graph: Graph, target: HardwareTarget) -> Program:
    """The program of a simplified graph on a target."""
    return _Lowering(name_attention(graph, target.vector_lanes), target).program()


class _Lowering:
    """A program so far; `became` has the value of the program for each one of the graph."""

    def __init__(self, graph: Graph, target: HardwareTarget) -> None:
        self.graph, self.target, self.lanes = graph, target, target.vector_lanes
        self.made = Program(tuple(Value(facts.shape, facts.dtype) for facts in graph.inputs), self.lanes)
        self.became = {v: v for v in range(len(graph.inputs))}
        self._changed: dict[tuple[int, bool], int] = {}
        # maps whose channels stand in other values: for each channel the value of the program and its channel there
        self._channels: dict[int, tuple[tuple[int, int], ...]] = {}
        # the same by the values of the program that they were brought together in
        self._gathers: dict[int, tuple[tuple[int, int], ...]] = {}
        self.chains = find_chains(graph)
        self.absorbed = {v for c in self.chains.values() for v in (c.product, *c.absorbed)} - set(self.chains)

    def program(self) -> Program:
        for value, node in numbered(self.graph):
            if value in self.absorbed:
                continue
            if value in self.chains:
                self.became[value] = self._chain(self.chains[value])
            elif (channels := self._moved_channels(node)) is not None:
                self._channels[value] = channels
            else:
                self.became[value] = self._node(node)
            if node.name and value in self.became:
                self.made.names.setdefault(self.became[value], node.name)
        self.made.outputs = tuple(self._output(o) for o in self.graph.outputs)
        view_maps(self.made, self._gathers)
        return self.made

    def _output(self, read: Read) -> int:
        if isinstance(read, Constant):
            return self._constant(read.value, Value(read.shape, str(read.value.dtype)))
        return self.plain(read)

    # ---- forms ---------------------------------------------------------------------------------------------------
    def number(self, read: int) -> int:
        """The value of the program for one of the graph; channels that stand elsewhere are brought together now."""
        if read not in self.became:
            self.became[read] = self._gathered(self._channels[read], self.graph.shape_of(read))
            if (node := self.graph.node_of(read)) is not None and node.name:
                self.made.names.setdefault(self.became[read], node.name)
        return self.became[read]

    def form(self, read: int) -> Value:
        """The form of what a value of the graph became."""
        return self.made.value(self.number(read))

    def plain(self, read: int) -> int:
        """The value of the program for one of the graph, as the framework has it."""
        return self._in_form(self.number(read), blocked=False)

    def blocked(self, read: int) -> int:
        """The value of the program for one of the graph, in channel blocks."""
        return self._in_form(self.number(read), blocked=True)

    def _in_form(self, number: int, blocked: bool) -> int:
        value = self.made.value(number)
        if value.blocked == blocked:
            return number
        if (number, blocked) not in self._changed:
            form = _in_form(number, value, self.lanes if blocked else 0)
            self._changed[number, blocked] = self.made.add(form)
        return self._changed[number, blocked]

    def _is_blocked(self, read: Read) -> bool:
        if isinstance(read, Constant):
            return False
        return read in self._channels or self.form(read).blocked

    # ---- channels that only move -----------------------------------------------------------------------------------
    def _moved_channels(self, node: Node) -> tuple[tuple[int, int], ...] | None:
        """The channels of a map that only puts those of others in another order; None of any other node."""
        if node.op not in ("concat", "slice", "shuffle") or len(node.shape) != 4 or node.dtype != "float32":
            return None
        if node.op != "shuffle" and node.attributes["axis"] % 4 != 1:
            return None
        if not all(self._is_blocked(r) for r in node.reads):
            return None
        channels = [c for r in node.reads if not isinstance(r, Constant) for c in self._channels_of(r)]
        if node.op == "slice":
            begin = node.attributes["begin"]
            return tuple(channels[begin : begin + node.shape[1]])
        if node.op == "shuffle":
            groups = node.attributes["groups"]
            each = len(channels) // groups
            return tuple(channels[g * each + i] for i in range(each) for g in range(groups))
        return tuple(channels)

    def _channels_of(self, read: int) -> tuple[tuple[int, int], ...]:
        if read in self._channels:
            return self._channels[read]
        number = self.blocked(read)
        return tuple((number, c) for c in range(self.graph.shape_of(read)[1]))

    def _gathered(self, channels: tuple[tuple[int, int], ...], shape: tuple[int, ...]) -> int:
        """A map of channels from other values: one of these if it is the same."""
        sources = tuple(dict.fromkeys(number for number, _ in channels))
        value = Value(shape, "float32", self.lanes)
        if channels == tuple((sources[0], c) for c in range(self.made.value(sources[0]).channels)):
            return sources[0]
        places = tuple((sources.index(number), c) for number, c in channels)
        parallel = self.target.num_threads > 1
        emit = functools.partial(others.gather_channels, places=places, value=value, parallel=parallel)
        made = self.made.add(OtherOperation("channels moved", sources, value, emit, keeps_form=True))
        self._gathers[made] = channels
        return made

    # ---- products ------------------------------------------------------------------------------------------------
    def _chain(self, chain: Chain) -> int:
        """A product with its neighbours as one tuned operator; where there is none, one after the other."""
        product = self.graph.nodes[chain.product - len(self.graph.inputs)]
        tuned = self._dense(chain, product) if product.op == "matmul" else self._convolution(chain, product)
        if tuned is not None:
            return self.made.add(tuned)
        for value in sorted((*chain.absorbed, chain.product)):
            self.became[value] = self._node(self.graph.nodes[value - len(self.graph.inputs)])
        return self.became[chain.end]

    def _fused(self, chain: Chain) -> dict[str, Any]:
        return {
            "epilogue": chain.activation,
            "scaled": chain.gate is not None,
            "prologue": chain.prologue,
            "residual": chain.residual is not None,
            "residual_first": chain.residual_first,
        }

    def _choices(self, op: str, *sizes: int, **facts: Any) -> list[Workload]:
        """An operator and others that compute the same by other algorithms, as far as there are kernels and they are
        worth trials."""
        found = []
        for name in (op, *backend_of(self.target).families().others(op, self.target.dtype)):
            try:
                workload = Workload(name, *sizes, **facts)  # type: ignore[arg-type]  # a package names its own
                schedule_space(workload, self.target)
            except ScheduleError:
                continue
            if _is_worth_trials(workload):
                found.append(workload)
        return found

    def _tuned(
        self, chain: Chain, choices: Sequence[Workload], source: int, weight: Array, bias: Array
    ) -> TunedOperation:
        images = choices[0].batch
        extras = [
            self._by_channel(r, images) if isinstance(r, Constant) else self.blocked(r)
            for r in (chain.gate, chain.shift, chain.residual)
            if r is not None
        ]
        end = self.graph.nodes[chain.end - len(self.graph.inputs)]
        step = Step(choices[0], (source, *extras))
        return TunedOperation(step, Value(end.shape, "float32", self.lanes), tuple(choices), weight, bias)

    def _by_channel(self, constant: Constant, images: int) -> int:
        """The value of numbers by channel, of each image."""
        packed = packed_constant(constant.value, self.lanes, images)
        return self._constant(packed, Value((images, constant.value.size, 1, 1), lanes=self.lanes))

    def _constant(self, numbers: Array, value: Value) -> int:
        return self.made.add(OtherOperation("constant", (numbers,), value, lambda _b, xs, _l: xs[0], True))

    def _convolution(self, chain: Chain, node: Node) -> TunedOperation | None:
        weight, bias = _weights(node)
        if isinstance(chain.source, Constant) or weight.ndim != 4:
            return None
        _, channels, height, width = self.graph.shape_of(chain.source)
        makers = self._convolutions(chain, node, (channels, height, width), weight)
        choices = [w for op, facts in makers for w in self._choices(op, height, channels, node.shape[1], **facts)]
        if not choices:
            return None
        source = self.plain(chain.source) if choices[0].op == "conv" else self.blocked(chain.source)
        return self._tuned(chain, choices, source, weight, bias)

    def _convolutions(
        self, chain: Chain, node: Node, shape: tuple[int, int, int], weight: Array
    ) -> Sequence[tuple[str, dict[str, Any]]]:
        """The operators that compute a convolution, the first of them the general one, with what they are told."""
        channels, _, width = shape
        a, kernel = node.attributes, weight.shape[2:]
        strides, groups = tuple(a["strides"]), int(a.get("groups", 1))
        common = {**self._fused(chain), "input_width": width, "batch": node.shape[0]}
        common |= {"stride": strides[0], "column_stride": strides[1]}
        window = {
            **common,
            "kernel_size": kernel[0],
            "kernel_width": kernel[1],
            "dilation": tuple(a.get("dilation", (1, 1))),
            "padding": tuple(a["padding"] if node.op == "conv2d" else a["crop"]),
        }
        if node.op == "upconv":
            return [("upconv", window)]
        if groups > 1:
            if groups == channels:
                return [("depthwise", window)]
            return [(op, {**window, "groups": groups}) for op in ("groupconv", "blockconv")]
        if channels <= MAX_IMAGE_CHANNELS and not self._is_blocked(chain.source):
            return [("conv", window)]
        if kernel == (1, 1) and not any(a["padding"]):
            return [("pointwise", common)]
        return [("blockconv", window)]

    def _dense(self, chain: Chain, node: Node) -> TunedOperation | None:
        """A product with a matrix: a 1×1 convolution whose pixels are the rows."""
        weight, bias = _weights(node)
        if isinstance(chain.source, Constant) or weight.ndim != 2:
            return None
        channels, out = weight.shape
        rows = tiled_rows(math.prod(node.shape[:-1]))
        extra: dict[str, Any] = {"input_width": 1} if rows > 1 else {}
        if not (choices := self._choices("pointwise", rows, channels, out, **self._fused(chain), **extra)):
            return None
        source, weight = self._dense_source(chain.source, rows, np.ascontiguousarray(weight.T))
        return self._tuned(chain, choices, source, weight.reshape(*weight.shape, 1, 1), bias)

    def _dense_source(self, read: int, rows: int, weight: Array) -> tuple[int, Array]:
        """The rows that a dense layer reads. A map that was flattened before stays in channel blocks: the weights are
        put in its order instead."""
        node = self.graph.node_of(read)
        if node is not None and node.op == "reshape" and rows == 1:
            before = node.reads[0]
            if not isinstance(before, Constant) and self._is_blocked(before):
                form = self.form(before)
                if form.channels % self.lanes == 0 and form.channels * form.pixels == weight.shape[1]:
                    order = np.arange(weight.shape[1]).reshape(-1, self.lanes, form.pixels).transpose(0, 2, 1).ravel()
                    flat = Value((1, weight.shape[1]), "float32", self.lanes)
                    emit = functools.partial(others.reshape, shape=flat.memory_shape)
                    operation = OtherOperation("reshape", (self.blocked(before),), flat, emit, True)
                    return self.made.add(operation), np.ascontiguousarray(weight[:, order])
        return self.blocked(read), weight

    # ---- all else ------------------------------------------------------------------------------------------------
    def _node(self, node: Node) -> int:
        """An operation for one node: in channel blocks where its values are, and it can be."""
        found = self._attention(node) or self._mean(node) or self._blocked_operation(node)
        if found is not None:
            return self.made.add(found)
        reads = tuple(r.value if isinstance(r, Constant) else self.plain(r) for r in node.reads)
        value = Value(node.shape, node.dtype)
        return self.made.add(OtherOperation(node.function, reads, value, functools.partial(others.plain, node=node)))

    def _attention(self, node: Node) -> OtherOperation | None:
        """An attention of rows in channel blocks."""
        if node.op != "attention":
            return None
        reads = [
            r.value if isinstance(r, Constant) else (self.blocked if i < 3 else self.plain)(r)
            for i, r in enumerate(node.reads)
        ]
        emit = functools.partial(emit_attention, heads=node.attributes["heads"], parallel=self.target.num_threads > 1)
        return OtherOperation("attention", tuple(reads), Value(node.shape, "float32", self.lanes), emit)

    def _mean(self, node: Node) -> TunedOperation | None:
        """A mean over all pixels of a map."""
        is_mean = node.op == "mean" and node.attributes["axis"] == (2, 3) and len(node.shape) == 4
        if not is_mean or not self._is_blocked(node.reads[0]):
            return None
        images, channels, height, width = self.graph.shape_of(node.reads[0])
        if not (choices := self._choices("pool", height, channels, channels, input_width=width, batch=images)):
            return None
        read = node.reads[0]
        assert not isinstance(read, Constant)
        step = Step(choices[0], (self.blocked(read),))
        return TunedOperation(step, Value((images, channels, 1, 1), "float32", self.lanes), tuple(choices))

    def _blocked_operation(self, node: Node) -> OtherOperation | None:
        """An operation on channel blocks, if there is one for the node and its values are there."""
        if not any(self._is_blocked(r) for r in node.reads) or node.dtype not in _BLOCKED_TYPES:
            return None
        value = Value(node.shape, node.dtype, self.lanes)
        for rule in (self._same, self._elementwise, self._window, self._repeat, self._layer_norm):
            found = rule(node, value)
            if found is not None:
                return found
        return None

    def _source(self, node: Node) -> int:
        read = node.reads[0]
        assert not isinstance(read, Constant)
        return self.blocked(read)

    def _same(self, node: Node, value: Value) -> OtherOperation | None:
        """A reshape of one pixel, or of rows: channels stay where they are."""
        if node.op != "reshape" or not node.shape:
            return None
        before = self.form(node.reads[0])  # type: ignore[arg-type]
        is_pixel = before.pixels == value.pixels == 1 and value.channels == before.channels
        if not (is_pixel and before.images == value.images) and not keeps_rows(node, before.shape):
            return None
        emit = functools.partial(others.reshape, shape=value.memory_shape)
        return OtherOperation("reshape", (self._source(node),), value, emit, True)

    def _elementwise(self, node: Node, value: Value) -> OtherOperation | None:
        """A function of single numbers of blocked values, gates, and constants by channel."""
        if node.op not in ELEMENTWISE and node.op not in ("activation", "clip"):
            return None
        reads: list[int | Array] = []
        axis = value.channel_axis
        one_pixel = tuple(e if i == axis or (i == 0 and value.images > 1) else 1 for i, e in enumerate(node.shape))
        for read in node.reads:
            if isinstance(read, Constant):
                numbers = per_channel(read.value, len(node.shape), axis)
                if numbers is None:
                    return None
                reads.append(packed_constant(numbers, self.lanes, value.images))
                continue
            if self.graph.shape_of(read) not in (node.shape, one_pixel) or self.form(read).dtype not in _BLOCKED_TYPES:
                return None
            reads.append(self.blocked(read))
        return OtherOperation(node.function, tuple(reads), value, functools.partial(others.plain, node=node))

    def _window(self, node: Node, value: Value) -> OtherOperation | None:
        if node.op not in ("max_pool2d", "avg_pool2d") or set(node.attributes["dilation"]) != {1}:
            return None
        shape = self.graph.shape_of(node.reads[0])
        parallel = self.target.num_threads > 1
        emit = functools.partial(window_pool, node=node, height=shape[2], width=shape[3], parallel=parallel)
        return OtherOperation(node.op, (self._source(node),), value, emit, keeps_form=node.op == "max_pool2d")

    def _repeat(self, node: Node, value: Value) -> OtherOperation | None:
        """Each pixel repeated a whole number of times."""
        if node.op != "repeat" or len(node.shape) != 4 or node.attributes["times"][:2] != (1, 1):
            return None
        times = node.attributes["times"][2:]
        emit = functools.partial(others.repeat_pixels, times=times, height=node.shape[2], width=node.shape[3])
        return OtherOperation("repeat", (self._source(node),), value, emit, keeps_form=True)

    def _layer_norm(self, node: Node, value: Value) -> OtherOperation | None:
        """A layer normalisation of rows."""
        if node.op != "layer_norm" or len(node.shape) == 4 or node.attributes["num_axes"] != 1:
            return None
        numbers = [node.constant(1), node.constant(2)]
        packed = [packed_constant(c.value, self.lanes) for c in numbers if c is not None]
        epsilon = float(node.attributes["epsilon"])
        emit = functools.partial(others.layer_norm, channels=value.channels, epsilon=epsilon)
        return OtherOperation("layer_norm", (self._source(node), *packed), value, emit) if len(packed) == 2 else None


def _is_worth_trials(workload: Workload) -> bool:
    """False of Winograd's products that save too little: in one dimension of all multiplications, in two of those that
    one dimension leaves, for each byte that the weights grow by, which are read from memory once an inference."""
    if workload.op not in WINOGRAD:
        return True
    weights, places = winograd_counts(workload)
    if workload.op == "winograd":
        plain = workload.kernel_area * workload.output_pixels
        return plain >= _LEAST_SAVED * weights * places
    one_way = winograd_counts(dataclasses.replace(workload, op="winograd"))
    saved, more_bytes = one_way.weights * one_way.places - weights * places, 4 * (weights - one_way.weights)
    return saved >= _LEAST_SAVED_PER_BYTE * more_bytes


def _weights(node: Node) -> tuple[Array, Array]:
    weight, bias = node.constant(1), node.constant(2)
    assert weight is not None
    num = node.shape[-1] if node.op == "matmul" else node.shape[1]
    zeros = np.zeros(num, np.float32)
    return weight.value, zeros if bias is None else np.broadcast_to(bias.value.reshape(-1), (num,)).astype(np.float32)
