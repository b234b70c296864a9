"""The kernel of `squeeze`: the mean over all pixels and the dense layer after it, squeeze-excite's first two operators.

Every block takes the mean of all channels, which costs less than another kernel would: a map of this space is a few
hundred kilobytes and comes from the L2 cache. Then it adds up its own columns of the dense layer.

Notation: C channels, in words of 32 bits; a thread has `vector` neighbouring words of some pixels; n columns of the
dense layer, each the sum of `shares` threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from chanas.compiler.cuda.intrinsics import HIGH_HALF, LOW_HALF
from chanas.compiler.cuda.ir import (
    as_words,
    assign,
    barrier,
    guarded,
    kernel,
    loop,
    loops,
    new_buffer,
    operator_buffers,
    sequence,
)
from chanas.compiler.cuda.operators import row_words, word_type
from chanas.compiler.cuda.points import WORD_BYTES, SqueezePoint
from chanas.compiler.expressions import epilogue, float32
from chanas.core.gpu import GPUFeatures
from chanas.operators.workload import Workload


@dataclass(frozen=True)
class SqueezePlan:
    """Sizes of a kernel.

    pixels        of a map
    words         of 32 bits of a pixel's channels
    vector        words that a thread loads at once
    columns       of a block, of the dense layer
    shares        threads of a column's sum; a power of two
    at_once       loads that are written out
    """

    pixels: int
    words: int
    vector: int
    columns: int
    shares: int
    at_once: int
    per_word: int

    @property
    def threads(self) -> int:
        return self.columns * self.shares

    @property
    def groups(self) -> int:
        """Vectors of a pixel's channels."""
        return self.words // self.vector

    @property
    def teams(self) -> int:
        """Threads that share a channel's pixels."""
        return max(1, self.threads // self.groups)

    @property
    def channels(self) -> int:
        return self.words * self.per_word

    @property
    def shared_bytes(self) -> int:
        return WORD_BYTES * (self.teams * self.channels + self.threads)


def squeeze_plan(workload: Workload, p: SqueezePoint) -> SqueezePlan:
    """Return the sizes that a point encodes."""
    return SqueezePlan(
        pixels=workload.input_size**2,
        words=row_words(workload),
        vector=p.vector,
        columns=p.n.inner,
        shares=p.shares,
        at_once=p.at_once,
        per_word=workload.input_precision.per_word,
    )


def squeeze_kernel(workload: Workload, point: SqueezePoint, gpu: GPUFeatures) -> Any:
    """A `tirx.PrimFunc` `main` of one operator."""
    return _Squeeze(workload, squeeze_plan(workload, point)).function()


class _Squeeze:
    """One kernel while it is written."""

    def __init__(self, workload: Workload, plan: SqueezePlan) -> None:
        self.workload, self.plan = workload, plan
        self.parameters = operator_buffers(workload)
        self.x, self.weights, self.bias, self.out = self.parameters
        self.views: list[Any] = []
        self.word = word_type(workload)
        if plan.per_word == 2:
            self.x = as_words(self.x, (int(self.x.shape[0]), plan.words), self.views)
            self.weights = as_words(self.weights, [int(n) for n in self.weights.shape[:3]], self.views)
        self.block, self.thread = (tirx.Var(name, "int32") for name in ("blockIdx.x", "threadIdx.x"))
        vector, at_once = plan.vector, plan.at_once
        self.means = new_buffer((plan.teams * plan.channels,), "float32", "means_shared", "shared")
        self.sums = new_buffer((plan.threads,), "float32", "sums_shared", "shared")
        self.loaded = new_buffer((at_once * vector,), self.word, "loaded", "local")
        self.acc = new_buffer((vector * plan.per_word,), "float32", "acc", "local")
        self.total = new_buffer((1,), "float32", "total", "local")

    def function(self) -> Any:
        plan = self.plan
        allocated = [tirx.AllocBuffer(b) for b in (self.means, self.sums, self.loaded, self.acc, self.total)]
        body = sequence(*self.views, *allocated, *self._means(), *self._columns())
        blocks = self.workload.out_channels // plan.columns
        return kernel(self.parameters, body, [(self.thread, plan.threads), (self.block, blocks)])

    def _values(self, word: Any) -> list[Any]:
        """The values that a word holds, as float32."""
        return [LOW_HALF(word), HIGH_HALF(word)] if self.plan.per_word == 2 else [word]

    # ---- means ------------------------------------------------------------------------------------------------------
    def _means(self) -> list[Any]:
        """Each team adds up its pixels of all channels; then a channel's teams are added up."""
        plan = self.plan
        if plan.teams == 1:
            turns = -(-plan.groups // plan.threads)

            def turn(i: Any) -> Any:
                group = i * plan.threads + self.thread
                inside = [group < plan.groups] if turns * plan.threads > plan.groups else []
                return guarded(inside, self._sum_pixels(group, 0, 1.0 / plan.pixels))

            return [loop("turn", turns, turn, "serial"), barrier()]
        group, team = self.thread % plan.groups, self.thread // plan.groups
        inside = [self.thread < plan.teams * plan.groups] if plan.threads > plan.teams * plan.groups else []
        turns = -(-plan.channels // plan.threads)

        def add(i: Any) -> Any:
            channel = i * plan.threads + self.thread
            found = loop(
                "team",
                plan.teams - 1,
                lambda t: assign(self.total, 0, self.total[0] + self.means[(t + 1) * plan.channels + channel]),
                "serial",
            )
            share = float32(1.0 / plan.pixels)
            done = sequence(
                assign(self.total, 0, self.means[channel]), found, assign(self.means, channel, self.total[0] * share)
            )
            return guarded([channel < plan.channels] if turns * plan.threads > plan.channels else [], done)

        return [
            guarded(inside, self._sum_pixels(group, team, 1.0)),
            barrier(),
            loop("turn", turns, add, "serial"),
            barrier(),
        ]

    def _sum_pixels(self, group: Any, team: Any, scale: float) -> Any:
        """One thread's pixels of a vector of channels, some loads under way at once, into shared memory."""
        plan, vector, per_word = self.plan, self.plan.vector, self.plan.per_word
        steps = -(-plan.pixels // (plan.teams * plan.at_once))
        uneven = steps * plan.teams * plan.at_once > plan.pixels

        def step(i: Any) -> Any:
            def load(u: Any, v: Any) -> Any:
                pixel = (i * plan.at_once + u) * plan.teams + team
                value = self.x[pixel, group * vector + v]
                if uneven:
                    value = tirx.if_then_else(pixel < plan.pixels, value, tirx.const(0, self.word))
                return assign(self.loaded, u * vector + v, value)

            def add(u: Any, v: Any) -> Any:
                values = self._values(self.loaded[u * vector + v])
                places = [v * per_word + h for h in range(per_word)]
                return sequence(
                    *(assign(self.acc, p, self.acc[p] + value) for p, value in zip(places, values, strict=True))
                )

            loads = loops(load, ("u", plan.at_once), ("v", vector, "vector"))
            return sequence(loads, loops(add, ("u", plan.at_once), ("v", vector)))

        first = team * plan.channels + group * (vector * per_word)
        return sequence(
            loop("i", vector * per_word, lambda i: assign(self.acc, i, float32(0.0))),
            loop("step", steps, step, "serial"),
            loop(
                "i",
                vector * per_word,
                lambda i: assign(self.means, first + i, self.acc[i] * float32(scale)),
            ),
        )

    # ---- dense layer ------------------------------------------------------------------------------------------------
    def _columns(self) -> list[Any]:
        """Each thread adds up some terms of its column; then a column's threads are added up, half of them at once."""
        plan, per_word = self.plan, self.plan.per_word
        column, share = self.thread % plan.columns, self.thread // plan.columns
        n = self.block * plan.columns + column
        steps = -(-plan.words // (plan.shares * plan.at_once))
        uneven = steps * plan.shares * plan.at_once > plan.words

        def step(i: Any) -> Any:
            def term(u: Any) -> Any:
                word = (i * plan.at_once + u) * plan.shares + share
                weights = self._values(self.weights[0, word, n])
                total = self.total[0]
                for h, weight in enumerate(weights):
                    total = total + self.means[word * per_word + h] * weight
                return guarded([word < plan.words] if uneven else [], assign(self.total, 0, total))

            return loop("u", plan.at_once, term)

        parts = [
            assign(self.total, 0, float32(0.0)),
            loop("step", steps, step, "serial"),
            assign(self.sums, self.thread, self.total[0]),
            barrier(),
        ]
        half = plan.shares // 2
        while half:
            other = self.sums[self.thread + half * plan.columns]
            parts.append(guarded([share < half], assign(self.sums, self.thread, self.sums[self.thread] + other)))
            parts.append(barrier())
            half //= 2
        value = epilogue(self.workload.epilogue, self.sums[self.thread] + self.bias[n]).astype(self.out.ty.dtype)
        return [*parts, guarded([share == 0] if plan.shares > 1 else [], assign(self.out, (0, n), value))]
