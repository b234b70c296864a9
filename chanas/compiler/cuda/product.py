"""The kernel of a product (1×1 and k×k convolutions over all channels), from a point of its space.

The program is written down as the primitives of the paper's table 1 would leave it: loops over outputs split and bound
to blocks and threads, both inputs cached in shared memory (twice, where the next stretch is loaded while one is used),
sums in registers, loads as vectors, what is unrolled marked so. It is not derived by TVM's schedules, because
fragments of tensor cores, stretches that overlap and sums that groups of threads share have no place in those.

Notation: m rows (pixels of all images), n columns (output channels), k words along a stretch of taps × input channels
(`plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from chanas.compiler.cuda.intrinsics import HIGH_HALF, LOW_HALF, MULTIPLY_HALVES, TO_TF32, WARP
from chanas.compiler.cuda.ir import (
    all_of,
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
from chanas.compiler.cuda.operators import image_and_pixel, store_vector, word_type
from chanas.compiler.cuda.points import MMA_COLUMNS, MMA_ROWS, ProductPlan, ProductPoint, product_plan
from chanas.compiler.expressions import epilogue, float32
from chanas.core.gpu import GPUFeatures
from chanas.operators.workload import Workload


def product_kernel(workload: Workload, point: ProductPoint, gpu: GPUFeatures) -> Any:
    """A `tirx.PrimFunc` `main` of one operator."""
    return _Product(workload, point, product_plan(workload, point, gpu)).function()


def _to_halves(words: Any, values: Any, num: int) -> Any:
    """Words to their two values each."""

    def both(i: Any) -> Any:
        return sequence(assign(values, i * 2, LOW_HALF(words[i])), assign(values, i * 2 + 1, HIGH_HALF(words[i])))

    return loop("i", num, both)


class _Product:
    """One kernel while it is written."""

    def __init__(self, workload: Workload, point: ProductPoint, plan: ProductPlan) -> None:
        self.workload, self.point, self.plan = workload, point, plan
        self.word = word_type(workload)
        self._views: list[Any] = []
        self._declare()
        self.block, self.thread = (tirx.Var(name, "int32") for name in ("blockIdx.x", "threadIdx.x"))
        self.share = tirx.Var("threadIdx.y", "int32") if plan.shares > 1 else 0
        m_b, n_b = plan.blocks
        by_columns = point.by_columns
        self.m0 = (self.block % m_b if by_columns else self.block // n_b) * plan.height
        self.n0 = (self.block // m_b if by_columns else self.block % n_b) * plan.width

    def _declare(self) -> None:
        """Arguments, views of float16 ones as words, shared memory and registers."""
        plan, workload = self.plan, self.workload
        buffers = operator_buffers(workload)
        *given, self.out = self.parameters = buffers
        self.x, self.weights, self.bias, *extras = given
        self.gate = extras.pop(0) if workload.scaled else None
        self.residual = extras.pop(0) if workload.residual else None
        if plan.values_per_word == 2:
            self.x = as_words(self.x, (self.x.shape[0], plan.row_words), self._views)
            self.weights = as_words(self.weights, self.weights.shape[:3], self._views)
            self.gate = (
                None if self.gate is None else as_words(self.gate, (self.gate.shape[0], plan.row_words), self._views)
            )
        self.tile_x = new_buffer((plan.num_tiles * plan.input_tile,), self.word, "input_shared", "shared")
        self.tile_w = new_buffer((plan.num_tiles * plan.weight_tile,), self.word, "weights_shared", "shared")
        self.next_x = new_buffer((plan.input_turns * plan.input_vector,), self.word, "input_next", "local")
        self.next_w = new_buffer((plan.weight_turns * plan.weight_vector,), self.word, "weights_next", "local")
        self.acc = new_buffer((plan.values,), "float32", "acc", "local")
        self.allocated = [self.tile_x, self.tile_w, self.next_x, self.next_w, self.acc]

    def _in_x(self, stage: Any, row: Any, k: Any) -> Any:
        """Place in shared memory of a word of the input's tile. Places are counted here, not by TVM, which would drop
        the words between the rows."""
        plan = self.plan
        return (stage * plan.shares + self.share) * plan.input_tile + row * plan.input_pitch + k

    def _in_w(self, stage: Any, k: Any, column: Any) -> Any:
        plan = self.plan
        return (stage * plan.shares + self.share) * plan.weight_tile + k * plan.weight_pitch + column

    def function(self) -> Any:
        plan = self.plan
        work = [*self._steps(), *self._shared_sums()]  # which adds to what is allocated
        body = sequence(*self._views, *(tirx.AllocBuffer(b) for b in self.allocated), *work)
        shares = [(self.share, plan.shares)] if plan.shares > 1 else []
        blocks = (self.block, plan.blocks[0] * plan.blocks[1])
        return kernel(self.parameters, body, [(self.thread, plan.threads), *shares, blocks])

    # ---- stretches --------------------------------------------------------------------------------------------------
    def _steps(self) -> list[Any]:
        """Zero, then one stretch after the other; with two stages the next one is on its way while one is used."""
        plan, each = self.plan, self.plan.stretches_each
        zero = loop("i", plan.values, lambda i: assign(self.acc, i, float32(0.0)))

        def alone(t: Any) -> Any:
            return sequence(self._fetch(t), barrier(), self._put(t, 0), barrier(), self._multiply(0))

        def together(t: Any) -> Any:
            """A stretch is under way while the one before is used; each part of the program stands here once."""
            more = [t < each]
            return sequence(
                guarded(more, self._fetch(t)),
                guarded([t > 0], self._multiply((t + 1) % 2)),
                guarded(more, self._put(t, t % 2)),
                barrier(),
            )

        if plan.stages == 1:
            return [zero, loop("step", each, alone, "serial")]
        return [zero, loop("step", each + 1, together, "serial")]

    def _origin(self, t: Any) -> tuple[Any, Any]:
        """The first tap and the first channel's word of this share's stretch `t`."""
        stretch = t * self.plan.shares + self.share
        steps = self.plan.num_channel_steps
        return stretch // steps * self.plan.taps, stretch % steps * self.plan.channel_words

    def _places(self, turns: int, vector: int, height: int, width: int, turn: Any) -> tuple[Any, Any, list[Any]]:
        """Row and first column of a thread's vector of a tile in a turn, and when there is one."""
        per_row = width // vector
        index = turn * self.plan.threads + self.thread
        inside = [] if turns * self.plan.threads == height * per_row else [index < height * per_row]
        return index // per_row, index % per_row * vector, inside

    def _fetch(self, t: Any) -> Any:
        """A stretch of both sides from memory into registers."""
        plan = self.plan
        tap, c = self._origin(t)

        def of_input(turn: Any) -> Any:
            row, column, guards = self._places(plan.input_turns, plan.input_vector, plan.height, plan.depth, turn)

            def load(v: Any) -> Any:
                value = self._input(row, tap + column // plan.channel_words, c + column % plan.channel_words, v, guards)
                return assign(self.next_x, turn * plan.input_vector + v, value)

            return loop("v", plan.input_vector, load, "vector")

        def of_weights(turn: Any) -> Any:
            k, column, guards = self._places(plan.weight_turns, plan.weight_vector, plan.depth, plan.width, turn)
            channel = c + k % plan.channel_words
            conditions = list(guards)
            if plan.words_over:
                conditions.append(channel < plan.row_words)
            if plan.columns_over:
                conditions.append(self.n0 + column < plan.columns)

            def load(v: Any) -> Any:
                value = self.weights[tap + k // plan.channel_words, channel, self.n0 + column + v]
                return assign(self.next_w, turn * plan.weight_vector + v, self._or_zero(conditions, value))

            return loop("v", plan.weight_vector, load, "vector")

        return sequence(loop("turn", plan.input_turns, of_input), loop("turn", plan.weight_turns, of_weights))

    def _or_zero(self, conditions: Sequence[Any], value: Any) -> Any:
        return tirx.if_then_else(all_of(conditions), value, tirx.const(0, self.word)) if conditions else value

    def _input(self, row: Any, tap: Any, word: Any, v: Any, guards: Sequence[Any]) -> Any:
        """The input's word under a tap of row `row` of the block; zero outside the map and beyond its channels."""
        plan, workload = self.plan, self.workload
        conditions, m = list(guards), self.m0 + row
        if plan.words_over:
            conditions.append(word < plan.row_words)
        if workload.op == "pointwise":
            if plan.rows_over:
                conditions.append(m < plan.rows)
            return self._or_zero(conditions, self.x[m, word + v])
        size, in_size, k = workload.output_size, workload.input_size, workload.kernel_size
        image, pixel = image_and_pixel(m, size**2, workload.batch)
        y = pixel // size * workload.stride + tap // k - k // 2
        x = pixel % size * workload.stride + tap % k - k // 2
        conditions += [m < workload.batch * size**2, y >= 0, y < in_size, x >= 0, x < in_size]
        place = y * in_size + x
        if workload.reads_image:
            return self._or_zero(conditions, self.x[image * workload.in_channels + word, place])
        return self._or_zero(conditions, self.x[image * in_size**2 + place, word + v])

    def _put(self, t: Any, stage: Any) -> Any:
        """Store the fetched values in shared memory, the input times its gate."""
        plan = self.plan
        _, c = self._origin(t)

        def of_input(turn: Any) -> Any:
            row, column, guards = self._places(plan.input_turns, plan.input_vector, plan.height, plan.depth, turn)
            first = turn * plan.input_vector

            def change(v: Any) -> Any:
                word = c + column % plan.channel_words + v
                return assign(self.next_x, first + v, self._operand(self.next_x[first + v], self.m0 + row, word))

            def store(v: Any) -> Any:
                return assign(self.tile_x, self._in_x(stage, row, column + v), self.next_x[first + v])

            changes = [loop("v", plan.input_vector, change)] if self.gate is not None or self._is_tf32 else []
            return guarded(guards, sequence(*changes, loop("v", plan.input_vector, store, "vector")))

        def of_weights(turn: Any) -> Any:
            k, column, guards = self._places(plan.weight_turns, plan.weight_vector, plan.depth, plan.width, turn)
            first = turn * plan.weight_vector

            def change(v: Any) -> Any:
                return assign(self.next_w, first + v, TO_TF32(self.next_w[first + v]))

            def store(v: Any) -> Any:
                return assign(self.tile_w, self._in_w(stage, k, column + v), self.next_w[first + v])

            changes = [loop("v", plan.weight_vector, change)] if self._is_tf32 else []
            return guarded(guards, sequence(*changes, loop("v", plan.weight_vector, store, "vector")))

        return sequence(loop("turn", plan.input_turns, of_input), loop("turn", plan.weight_turns, of_weights))

    @property
    def _is_tf32(self) -> bool:
        return self.plan.core is not None and self.plan.values_per_word == 1

    def _operand(self, value: Any, m: Any, word: Any) -> Any:
        """A word of row `m` of the input as it is multiplied."""
        if self.gate is not None:
            plan, batch, pixels = self.plan, self.workload.batch, self.workload.output_size**2
            beyond = [word < plan.row_words] if plan.words_over else []
            if batch > 1 and plan.blocks[0] * plan.height > batch * pixels:
                beyond.append(m < batch * pixels)
            gate = self._or_zero(beyond, self.gate[image_and_pixel(m, pixels, batch)[0], word])
            value = MULTIPLY_HALVES(value, gate) if plan.values_per_word == 2 else value * gate
        return TO_TF32(value) if self._is_tf32 else value

    # ---- products ---------------------------------------------------------------------------------------------------
    def _multiply(self, stage: Any) -> Any:
        return self._multiply_fragments(stage) if self.plan.core else self._multiply_values(stage)

    def _multiply_values(self, stage: Any) -> Any:
        """A thread's rows × columns, some words of k after the other."""
        plan, (_, m_t, m_v), (_, n_t, n_v) = self.plan, self.point.m, self.point.n
        at_once, per_word, vector = self.point.at_once, plan.values_per_word, self._column_vector
        row, column = self.thread // n_t, self.thread % n_t
        word_a = new_buffer((m_v * at_once,), self.word, "a_words", "local")
        word_b = new_buffer((n_v,), self.word, "b_words", "local")
        a, b = word_a, word_b
        self.allocated += [word_a, word_b]
        if per_word == 2:
            a = new_buffer((2 * m_v * at_once,), "float32", "a", "local")
            b = new_buffer((2 * n_v,), "float32", "b", "local")
            self.allocated += [a, b]

        def halves(words: Any, values: Any, num: int) -> list[Any]:
            return [] if per_word == 1 else [_to_halves(words, values, num)]

        def step(k: Any) -> Any:
            def load_a(i: Any, u: Any) -> Any:
                place = self._in_x(stage, i * m_t + row, k * at_once + u)
                return assign(word_a, i * at_once + u, self.tile_x[place])

            def one(u: Any) -> Any:
                def load_b(q: Any, v: Any) -> Any:
                    place = self._in_w(stage, k * at_once + u, q * (n_t * vector) + column * vector + v)
                    return assign(word_b, q * vector + v, self.tile_w[place])

                def add(h: Any, i: Any, j: Any) -> Any:
                    place = i * n_v + j
                    product = a[(i * at_once + u) * per_word + h] * b[j * per_word + h]
                    return assign(self.acc, place, self.acc[place] + product)

                loads = loops(load_b, ("q", n_v // vector), ("v", vector, "vector"))
                return sequence(loads, *halves(word_b, b, n_v), loops(add, ("h", per_word), ("i", m_v), ("j", n_v)))

            loads = loops(load_a, ("i", m_v), ("u", at_once, "vector"))
            return sequence(loads, *halves(word_a, a, m_v * at_once), loop("u", at_once, one))

        return loop("k", plan.depth // at_once, step, "serial")

    @property
    def _column_vector(self) -> int:
        """A thread's columns are vectors, those of its neighbours beside each."""
        return store_vector(self.point.n.values)

    @property
    def _lane(self) -> tuple[Any, Any, Any, Any]:
        """Row and column of this thread's warp in the block, its groupID and its threadID_in_group."""
        n_w = self.point.n.threads
        warp, lane = self.thread // WARP, self.thread % WARP
        return warp // n_w, warp % n_w, lane // 4, lane % 4

    def _multiply_fragments(self, stage: Any) -> Any:
        """A warp's tiles of 16 × 8: fragments from shared memory into registers, then `mma.sync` of all pairs."""
        plan, core = self.plan, self.plan.core
        assert core is not None
        m_v, n_v = self.point.m.values, self.point.n.values
        high, wide, depth = m_v // MMA_ROWS, n_v // MMA_COLUMNS, core.depth // plan.values_per_word
        words_a, words_b = core.words, core.words // 2
        a = new_buffer((high * words_a,), self.word, "a_fragment", "local")
        b = new_buffer((wide * words_b,), self.word, "b_fragment", "local")
        self.allocated += [a, b]
        warp_m, warp_n, group, in_group = self._lane

        def step(k: Any) -> Any:
            def load_a(i: Any, r: Any) -> Any:
                row = warp_m * m_v + i * MMA_ROWS + group + r % 2 * 8
                value = self.tile_x[self._in_x(stage, row, k * depth + in_group + r // 2 * 4)]
                return assign(a, i * words_a + r, value)

            def load_b(j: Any, r: Any) -> Any:
                column = warp_n * n_v + j * MMA_COLUMNS + group
                value = self.tile_w[self._in_w(stage, k * depth + in_group + r * 4, column)]
                return assign(b, j * words_b + r, value)

            def multiply(i: Any, j: Any) -> Any:
                places = (self.acc[(i * wide + j) * 4], a[i * words_a], b[j * words_b])
                return tirx.Evaluate(core.intrinsic(*(tirx.address_of(p) for p in places)))

            return sequence(
                loops(load_a, ("i", high), ("r", words_a)),
                loops(load_b, ("j", wide), ("r", words_b)),
                loops(multiply, ("i", high), ("j", wide)),
            )

        return loop("k", plan.depth // depth, step)

    # ---- results ----------------------------------------------------------------------------------------------------
    def _shared_sums(self) -> list[Any]:
        """The shares' sums through shared memory to the first share, which stores them."""
        plan = self.plan
        if plan.shares == 1:
            return [self._assign()]
        left = new_buffer((plan.shares - 1, plan.values, plan.threads), "float32", "sums_shared", "shared")
        self.allocated.append(left)
        leave = loop("i", plan.values, lambda i: assign(left, (self.share - 1, i, self.thread), self.acc[i]))

        def add(s: Any) -> Any:
            return loop("i", plan.values, lambda i: assign(self.acc, i, self.acc[i] + left[s, i, self.thread]))

        first = sequence(loop("s", plan.shares - 1, add, "serial"), self._assign())
        return [
            tirx.IfThenElse(self.share > 0, leave, None),
            barrier(),
            tirx.IfThenElse(self.share == 0, first, None),
        ]

    def _assign(self) -> Any:
        return self._store_fragments() if self.plan.core else self._store_values()

    def _value(self, place: Any, m: Any, n: Any) -> Any:
        """Bias, epilogue and residual of one sum."""
        value = epilogue(self.workload.epilogue, self.acc[place] + self.bias[n])
        if self.residual is not None:
            value = value + self.residual[m, n].astype("float32")
        return value.astype(self.out.ty.dtype)

    def _store_values(self) -> Any:
        (_, m_t, m_v), (_, n_t, n_v) = self.point.m, self.point.n
        vector = self._column_vector
        row, column = self.thread // n_t, self.thread % n_t

        def one(i: Any, q: Any, v: Any) -> Any:
            m, n = self.m0 + i * m_t + row, self.n0 + q * (n_t * vector) + column * vector + v
            return assign(self.out, (m, n), self._value(i * n_v + q * vector + v, m, n))

        return loops(one, ("i", m_v), ("q", n_v // vector), ("v", vector, "vector"))

    def _store_fragments(self) -> Any:
        plan, m_v, n_v = self.plan, self.point.m.values, self.point.n.values
        high, wide = m_v // MMA_ROWS, n_v // MMA_COLUMNS
        warp_m, warp_n, group, in_group = self._lane

        def one(i: Any, j: Any, h: Any) -> Any:
            m = self.m0 + warp_m * m_v + i * MMA_ROWS + group + h * 8
            n = self.n0 + warp_n * n_v + j * MMA_COLUMNS + in_group * 2
            conditions = [m < plan.rows] if plan.rows_over else []
            conditions += [n < plan.columns] if plan.columns_over else []
            place = ((i * wide + j) * 2 + h) * 2
            both = loop("v", 2, lambda v: assign(self.out, (m, n + v), self._value(place + v, m, n + v)), "vector")
            return guarded(conditions, both)

        return loops(one, ("i", high), ("j", wide), ("h", 2))
