"""One operator on a new device, when every point of a finite space may have been timed on others: logarithms of seconds
there go in, which point to measure next comes out.

How far another device is believed is what the first measurements say of it (`Mixture`), against a process that knows
none (`FiniteProcess`). How probable it is that a point works at all is a model of its own (`Validity`).

Notation: N points, F features, S sources (other devices), n measured points, R slopes.
    x  float64[N, F]  features       m  float64[N]  log seconds that are expected before anything is measured
    y  log seconds of a measured point, about zero for one that is neither fast nor slow
Log seconds of a device are infinite where a point does not work on it, and NaN where that is not known.
    h  float64[R, N]  slopes: what m may be wrong by in proportion to, each centred
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chanas.core.arrays import BoolArray, FloatArray
from chanas.core.statistics import matern
from chanas.files.csv_files import as_numbers

# ---- configurations as points ---------------------------------------------------------------------------------------
# Values that differ by less, as a share of the largest, are the same.
_SAME = 1e-9


def encode(values: npt.ArrayLike) -> FloatArray:
    """Encode parameters [N, P] of configurations, numbers or words, as float64[N, F].

    A parameter whose values are all read as finite numbers becomes one standardised column, of its logarithm where all
    are positive. Any other, `True` and `False` too, becomes a column for each of its words, such that two different
    words are equally far apart whichever they are, and two random configurations on average as far as by a number:
    the squared distance of two points is 2 in the mean over all pairs, for each parameter. What is the same everywhere
    is left out.

    Raises:
        ValueError: `values` is no table with at least one row.
    """
    table = np.asarray(values).astype(str)
    if table.ndim != 2 or len(table) == 0:
        raise ValueError(f"expected a table [configurations, parameters], got an array of shape {table.shape}")
    columns = [part for column in table.T for part in _encode_column(column)]
    return np.column_stack(columns) if columns else np.zeros((len(table), 0))


def _encode_column(column: npt.NDArray[np.str_]) -> list[FloatArray]:
    numbers = as_numbers(column)
    if numbers is None:
        return _encode_words(column)
    largest = float(np.abs(numbers).max())
    if largest == 0.0:
        return []
    scaled = numbers / largest  # no overflow of squares
    if scaled.min() > 0.0:
        scaled = np.log2(scaled)
    if np.ptp(scaled) <= _SAME:
        return []
    scaled = scaled - scaled.mean()
    return [scaled / scaled.std()]


def _encode_words(column: npt.NDArray[np.str_]) -> list[FloatArray]:
    words, codes = np.unique(column, return_inverse=True)
    shares = np.bincount(codes) / len(codes)
    if len(words) < 2:
        return []
    spread = np.sqrt(1.0 - float((shares**2).sum()))
    return [((codes == code) - share) / spread for code, share in enumerate(shares)]


# ---- which points work ----------------------------------------------------------------------------------------------
# Pseudo-trials behind what a source says: enough for ten to one, few enough to be unlearned in a few trials.
_LIKELY, _UNLIKELY = 1.0, 0.1
# In units of the root of F, where configurations share about as many limits as latencies.
_NEAR = (0.25, 0.5)


class Validity:
    """Probabilities that points work, given the trials so far.

    Several opinions, each with a probability for every point:
        source j    points that work there work here with one probability, the others with another; each of the two
                    has a beta distribution, which begins at ten to one for the same as there
        neighbours  what is near works alike: (½ + Σ κ worked) / (1 + Σ κ), sums over tried points, κ = exp(−(d / l)²)
    Opinions are weighted by how probable each held every outcome before it was known, as in `Mixture`. Without a point
    that failed anywhere every point has the same probability, and nothing changes.
    """

    def __init__(self, num_points: int, sources: FloatArray) -> None:
        """Begin without trials; `sources` is float64[N, S]. A point of which a source knows nothing counts as one that
        works there. Sources on which all points work, or none, say nothing of single ones and are left out."""
        works = ~np.isposinf(sources)
        self._works = [column for column in works.T if column.any() and not column.all()]
        # By source: of points that work there and of others, pseudo-counts that they work here and that they don't.
        self._counts = np.array([[[_UNLIKELY, _LIKELY], [_LIKELY, _UNLIKELY]]] * len(self._works)).reshape(-1, 2, 2)
        # By length: kernels of tried points that worked, and of those that did not.
        self._near = np.full((len(_NEAR), 2, num_points), 0.5)
        self._evidence = np.zeros(len(self._works) + len(_NEAR))
        self._any_failed = bool(self._works)

    def observe(self, index: int, worked: bool, distance: FloatArray) -> None:
        """Take in one trial; `distance` is float64[N] of its point to all, in units of the root of F."""
        probable = np.array([column[index] for column in self._by_opinion()])
        self._evidence += np.log(probable if worked else 1.0 - probable)
        for counts, works in zip(self._counts, self._works, strict=True):
            counts[int(works[index]), 0 if worked else 1] += 1.0
        for near, length in zip(self._near, _NEAR, strict=True):
            near[0 if worked else 1] += np.exp(-((distance / length) ** 2))
        self._any_failed |= not worked

    def _by_opinion(self) -> list[FloatArray]:
        """float64[N] of each opinion."""
        shares = self._counts[:, :, 0] / self._counts.sum(axis=2)
        out = [share[works.astype(np.int64)] for share, works in zip(shares, self._works, strict=True)]
        return out + [near[0] / near.sum(axis=0) for near in self._near]

    def probabilities(self) -> FloatArray | None:
        """float64[N]; None while no point is known to fail anywhere."""
        if not self._any_failed:
            return None
        weights = np.exp(self._evidence - self._evidence.max())
        out: FloatArray = sum(
            weight * column for weight, column in zip(weights / weights.sum(), self._by_opinion(), strict=True)
        )
        return out


# ---- a process ------------------------------------------------------------------------------------------------------
# Shape of the prior of s²: two measurements' worth.
_SHAPE = 2.0
# Ω, in log seconds (any level), and T, as a share of the differences that are expected.
_LEVEL, _STRETCH = 10.0, 0.25
_LEAST_VARIANCE = 1e-9


class Distances:
    """Distances |x − x'| of measured points to all, float64[n, N], kept once for all processes."""

    def __init__(self, x: FloatArray) -> None:
        """Begin without measured points; x is float64[N, F]."""
        self._x = np.ascontiguousarray(x)
        self._rows: FloatArray = np.zeros((16, len(x)))
        self.measured: list[int] = []

    def row(self, index: int) -> FloatArray:
        """float64[N]: of one point to all."""
        out: FloatArray = np.zeros(len(self._x))
        for column in self._x.T:  # a column at a time: no second copy of all features
            out += (column - column[index]) ** 2
        return np.sqrt(out)

    def add(self, index: int, row: FloatArray) -> None:
        """Take in a measured point, with its `row`."""
        if len(self.measured) == len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._rows[len(self.measured)] = row
        self.measured.append(index)

    def with_measured(self, length: float) -> FloatArray:
        """float64[n]: κ of the last measured point with each."""
        if length == 0.0:
            return np.equal(self.measured, self.measured[-1]).astype(np.float64)
        return matern(self._rows[len(self.measured) - 1, self.measured] / length)

    def with_all(self, length: float, begin: int) -> FloatArray:
        """float64[n − begin, N]: κ of the measured points from the `begin`-th on with all."""
        if length > 0.0:
            return matern(self._rows[begin : len(self.measured)] / length)
        own: FloatArray = np.zeros((len(self.measured) - begin, self._rows.shape[1]))
        own[np.arange(len(own)), self.measured[begin:]] = 1.0
        return own

    def spread(self, length: float, coefficients: FloatArray) -> FloatArray:
        """float64[N]: the sum of `coefficients` float64[n] times κ of each measured point with all."""
        if length > 0.0:
            return coefficients @ self.with_all(length, 0)
        out: FloatArray = np.zeros(self._rows.shape[1])
        out[self.measured] = coefficients
        return out


class FiniteProcess:
    """A Gaussian process on the points, told of one measurement after the other.

        y = m(x) + g(x) + noise,   g ~ GP(0, s² k),   noise ~ N(0, s² η²),   s² ~ inverse gamma(a, b)
        k(x, x') = κ(x, x') + ω² + τ² Σ_r h_r(x) h_r(x'),   ω² = Ω² / E s²,   τ² = T² / E s²

    κ is Matérn's kernel with ν = 5/2 of |x − x'| / l or, at l = 0, one where both are the same point: then what a point
    differs by from m says nothing about any other, and the order of unmeasured points stays that of m and the slopes.
    Ω leaves the level open, and T by how much the differences that m expects are to be stretched. Neither scales with
    s: how close y comes to m point by point says nothing about them. s is not known: with s² integrated out, what is
    said about the next point is Student's distribution with 2a degrees of freedom (Shah, Wilson and Ghahramani, 2014).
    For a measured point i with residual e = y − mean_i and variance v = var_i + η²,
        a ← a + ½,   b ← b + ½ e²/v,
    and its density under what was believed before adds up to the evidence of the process. The first measurement says
    nothing but the level: it changes neither a, b nor the evidence, as when Ω is infinite.

    With L the Cholesky factor of the measured points' covariances (and η² on its diagonal) and u = L⁻¹ (y − m), a
    measurement costs O(n²). What is said about all points,
        mean = m + Vᵀ u,   var = k(x, x) − Σ V²,   V = L⁻¹ k(measured, all), float64[n, N],
    is brought up to date when it is asked for, in O(n N) for each measurement since the last time: of hundreds of
    processes on 100,000 points few are ever asked.

    evidence  logarithm of the density of all measurements
    length    l, in units of the distances
    """

    def __init__(
        self,
        expected: FloatArray,
        distances: Distances,
        length: float,
        noise: float,
        difference: float,
        slopes: FloatArray,
        evidence: float = 0.0,
    ) -> None:
        """Begin before any measurement.

        Args:
            expected: m, float64[N].
            distances: of the points that are measured, which is told of each before this is.
            length: l.
            noise: η, as a share of s.
            difference: root of the expectation of s², in log seconds.
            slopes: h, float64[R, N].
            evidence: logarithm of a prior.
        """
        self._expected, self._slopes, self._distances = expected, slopes, distances
        self.length, self._noise = length, noise**2
        self._level, self._stretch = (_LEVEL / difference) ** 2, (_STRETCH / difference) ** 2
        self.evidence = evidence
        self._shape, self._rate = _SHAPE, difference**2 * (_SHAPE - 1.0)
        self._factor: FloatArray = np.zeros((16, 16))
        self._solved: FloatArray = np.zeros(16)
        self._num = 0
        # Of all points, as of the first `_num_rows` measurements; nothing before somebody asks.
        self._rows: FloatArray | None = None
        self._mean, self._variance = expected, np.zeros(0)
        self._num_rows = 0

    @property
    def deviation(self) -> float:
        """Standard deviation of log seconds where the variance is one."""
        return math.sqrt(self._rate / (self._shape - 1.0))

    @property
    def mean(self) -> FloatArray:
        """float64[N] of log seconds."""
        self._catch_up()
        return self._mean

    @property
    def variance(self) -> FloatArray:
        """float64[N] of g, in units of s²."""
        self._catch_up()
        return self._variance

    def observe(self, index: int, y: float) -> None:
        """Take in one measurement, that of the point which `distances` was told of last."""
        from scipy.linalg import solve_triangular

        num, measured = self._num, self._distances.measured
        if num == len(self._solved):
            self._solved = np.concatenate([self._solved, np.zeros(num)])
            self._factor = np.pad(self._factor, (0, num))
        covariance = self._distances.with_measured(self.length)
        covariance += self._level + self._stretch * (self._slopes[:, index] @ self._slopes[:, measured])
        row = covariance[:0]
        if num:
            row = solve_triangular(self._factor[:num, :num], covariance[:num], lower=True, check_finite=False)
        residual = y - float(self._expected[index]) - float(row @ self._solved[:num])
        variance = max(float(covariance[num] - row @ row), _LEAST_VARIANCE) + self._noise
        if num:
            self._weigh(residual**2 / variance, variance)
        self._factor[num, :num], self._factor[num, num] = row, math.sqrt(variance)
        self._solved[num] = residual / math.sqrt(variance)
        self._num += 1

    def coefficients(self) -> FloatArray:
        """float64[n]: α = L⁻ᵀ u, with which mean = m + k(all, measured) α."""
        from scipy.linalg import solve_triangular

        num = self._num
        if not num:
            return self._solved[:0]
        factor = self._factor[:num, :num]
        out: FloatArray = solve_triangular(factor, self._solved[:num], lower=True, trans="T", check_finite=False)
        return out

    def trend(self, coefficients: FloatArray) -> FloatArray:
        """float64[N]: the mean for its `coefficients`, without what κ adds."""
        steep = self._stretch * (self._slopes[:, self._distances.measured] @ coefficients)
        out: FloatArray = self._expected + steep @ self._slopes + self._level * coefficients.sum()
        return out

    def _weigh(self, square: float, variance: float) -> None:
        """Take in e²/v and v: evidence, and what is known of s²."""
        half = self._shape + 0.5
        self.evidence += math.lgamma(half) - math.lgamma(self._shape)
        self.evidence -= 0.5 * math.log(2.0 * math.pi * self._rate * variance)
        self.evidence -= half * math.log1p(square / (2.0 * self._rate))
        self._shape, self._rate = half, self._rate + 0.5 * square

    def _catch_up(self) -> None:
        """Bring what is said about all points up to date."""
        from scipy.linalg import solve_triangular

        if self._rows is None:
            self._rows = np.zeros((16, len(self._expected)))
            self._variance = 1.0 + self._level + self._stretch * (self._slopes**2).sum(axis=0)
        begin, end = self._num_rows, self._num
        if begin == end:
            return
        while end > len(self._rows):
            self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        rows = self._distances.with_all(self.length, begin) + self._level
        rows += (self._stretch * self._slopes[:, self._distances.measured[begin:]].T) @ self._slopes
        if begin:
            rows -= self._factor[begin:end, :begin] @ self._rows[:begin]
        rows = solve_triangular(self._factor[begin:end, begin:end], rows, lower=True, check_finite=False)
        self._rows[begin:end] = rows
        self._num_rows = end
        self._mean = self._mean + self._solved[begin:end] @ rows
        self._variance = np.maximum(self._variance - (rows**2).sum(axis=0), _LEAST_VARIANCE)

    def expected_improvement(self, best: float) -> FloatArray:
        """float64[N]: E[max(0, best − y)], y being taken for normal with the mean and variance of its distribution.

        Noise counts: a configuration's own share of its time, which no other has, is there to be gained.
        """
        from scipy.special import ndtr

        deviation = self.deviation * np.sqrt(self.variance + self._noise)
        z = (best - self.mean) / deviation
        gain: FloatArray = deviation * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
        return gain


# ---- opinions -------------------------------------------------------------------------------------------------------
ALONE, ALL = -1, -2
"""Opinions beside those of the sources 0, 1, …"""
# Lengths of processes in units of the root of the number of parameters: differences of standardised features grow with
# it. Noise is what a point has for itself: little, or a fifth of the variance. Where points have nothing to do with
# each other (a length of zero) it is no different from differences: one is enough.
_LENGTHS = (0.0, 0.25, 0.5, 1.0, 2.0)
_NOISES = (0.1, 0.5)
# How much points differ from what is expected: by a factor of about two, or by a fifth.
_DIFFERENCES = (0.77, 0.2)
_PRIOR_ALONE = 0.5
_DROPPED, _NEGLIGIBLE = 1e-4, 1e-2
# Of one's opinions the heaviest choose: what each says of 100,000 points takes some milliseconds.
_MOST_ASKED = 8


def _expectations(sources: FloatArray, num_points: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield whose opinion, m float64[N], and slopes float64[R, N]; a source that knows no point has none."""
    yield ALONE, np.zeros(num_points), np.zeros((0, num_points))
    knows = np.isfinite(sources)
    usable = np.flatnonzero(knows.any(axis=0)).tolist()
    centred = [sources[:, j] - sources[knows[:, j], j].mean() for j in usable]
    filled = [np.where(np.isfinite(column), column, 0.0) for column in centred]
    for j, column in zip(usable, filled, strict=True):
        others = [other - column for k, other in zip(usable, filled, strict=True) if k != j]
        yield j, column, np.array([column, *others])
    if len(usable) > 1:
        slopes = np.array(filled)
        num = np.maximum(knows[:, usable].sum(axis=1), 1)
        yield ALL, slopes.sum(axis=0) / num, slopes - slopes.mean(axis=1, keepdims=True)


class Mixture:
    """Opinions of other devices about all points, weighted by how far the measurements so far bear them out.

    An opinion expects log seconds m(x) of each point and is corrected by a process, whose slopes are h:
        alone     m = 0: what is measured here, nothing else
        source j  m = log seconds on that device, centred over its valid points; h = m, so that differences are
                  stretched, and what other sources are off from it, so that the new device may lie between them
        all       m = the mean over sources, where there are several; h = each source
    Each is there with several lengths, noises and sizes of differences of its process; a length of zero takes m as it
    is, point by point. Their weights are their evidence: how probable each held every measurement before it was made
    (Bayesian model averaging; ensembles of processes of other tasks: Feurer, Letham and Bakshy, 2018). `alone` begins
    with half of the weight, so that a device which says nothing of this one loses the rest within a few measurements:
    this is the guard. An opinion that has lost all but a ten-thousandth of the weight of the strongest is dropped for
    good; `alone` never is.
    """

    def __init__(self, x: FloatArray, sources: FloatArray) -> None:
        """Begin without measurements.

        Args:
            x: float64[N, F], as `encode` makes it.
            sources: float64[N, S] of log seconds on other devices.
        """
        num_parameters = float(x.var(axis=0).sum()) if x.shape[1] else 1.0
        self._distances = Distances(x / math.sqrt(max(num_parameters, 1e-12)))
        self._num_points = len(x)
        self._validity = Validity(len(x), sources)
        kinds = [(length, noise) for length in _LENGTHS for noise in (_NOISES if length else _NOISES[:1])]
        expectations = list(_expectations(sources, len(x)))
        self._opinions: list[tuple[int, FiniteProcess]] = []
        for whose, m, slopes in expectations:
            weight = _PRIOR_ALONE if whose == ALONE else (1.0 - _PRIOR_ALONE) / (len(expectations) - 1)
            for (length, noise), difference in itertools.product(kinds, _DIFFERENCES):
                own = math.log(weight / len(_LENGTHS) / (len(_NOISES) if length else 1) / len(_DIFFERENCES))
                process = FiniteProcess(m, self._distances, length, noise, difference, slopes, own)
                self._opinions.append((whose, process))
        self._level: float | None = None

    def _weights(self) -> FloatArray:
        """float64 of each opinion that is left; they sum to one."""
        evidence = np.array([process.evidence for _, process in self._opinions])
        weights = np.exp(evidence - evidence.max())
        out: FloatArray = weights / weights.sum()
        return out

    def weights(self) -> dict[int, float]:
        """Weight of `ALONE`, of each source by its number and of `ALL`; those that were dropped are missing."""
        found: dict[int, float] = {}
        for (whose, _), weight in zip(self._opinions, self._weights().tolist(), strict=True):
            found[whose] = found.get(whose, 0.0) + weight
        return found

    @property
    def trust(self) -> float:
        """The weight of all opinions but `ALONE`."""
        return 1.0 - self.weights()[ALONE]

    @property
    def leader(self) -> int:
        """`ALONE` while it has half of the weight, else the strongest of the others."""
        weights = self.weights()
        alone = weights.pop(ALONE)
        return ALONE if alone >= 0.5 or not weights else max(weights, key=weights.__getitem__)

    def observe(self, index: int, log_seconds: float) -> None:
        """Take in a tried point, infinite where it does not work; opinions that nothing speaks for are dropped."""
        row = self._distances.row(index)
        self._validity.observe(index, math.isfinite(log_seconds), row)
        if not math.isfinite(log_seconds):
            return
        if self._level is None:
            self._level = log_seconds
        self._distances.add(index, row)
        for _, process in self._opinions:
            process.observe(index, log_seconds - self._level)
        weights = self._weights()
        least = _DROPPED * weights.max()
        self._opinions = [o for o, w in zip(self._opinions, weights, strict=True) if w > least or o[0] == ALONE]

    def predict(self) -> FloatArray:
        """float64[N]: log seconds of all points, up to a constant before the first measurement."""
        mean = np.full(self._num_points, self._level or 0.0)
        by_length: dict[float, FloatArray] = {}
        for (_, process), weight in zip(self._opinions, self._weights().tolist(), strict=True):
            coefficients = process.coefficients()
            mean += weight * process.trend(coefficients)
            by_length[process.length] = by_length.get(process.length, 0.0) + weight * coefficients
        for length, coefficients in by_length.items():
            mean += self._distances.spread(length, coefficients)
        return mean

    def works(self) -> FloatArray | None:
        """float64[N]: how probable it is that each point works; None while no point is known to fail anywhere."""
        return self._validity.probabilities()

    def expected_improvement(self, best: float, whose: int) -> FloatArray:
        """float64[N]: by how much each point, if it works, is expected to be below `best` log seconds, in one's
        opinion."""
        level = self._level or 0.0
        own = [(p, w) for (o, p), w in zip(self._opinions, self._weights().tolist(), strict=True) if o == whose]
        own = sorted(own, key=lambda pair: -pair[1])[:_MOST_ASKED]
        least = _NEGLIGIBLE * own[0][1]
        gains = [w * process.expected_improvement(best - level) for process, w in own if w >= least]
        out: FloatArray = np.sum(gains, axis=0)
        return out


# ---- the search -----------------------------------------------------------------------------------------------------
# Points that are drawn at random before only the model chooses, every other one of the first trials.
_NUM_RANDOM = 4
# Where other devices are believed this much, nothing has to be drawn at random any more.
_TRUSTED = 0.7
# A point at random, or one chosen before any is known to work, works about as probably as the surest, by this share.
_SURE = 0.5
# Improvements of log seconds that are none: then the order is that of what is predicted.
_NOTHING = 1e-9


class TransferSearch:
    """The `Tuner` of a finite space by the seconds of other devices; points are their numbers, seconds logarithms.

    It goes by the leading opinion alone: in an average, what a source that is wrong promises would always look larger
    than what is there to be gained. Every other of the first trials is a point at random, so that the others, which
    the model chose, have something to be compared with. An invalid point is a trial that is spent; what is gained by
    a point counts by how probable it is that the point works.
    """

    def __init__(self, x: FloatArray, sources: FloatArray, rng: np.random.Generator) -> None:
        """Begin. x float64[N, F] and sources float64[N, S] as in `Mixture`."""
        self.model = Mixture(x, sources)
        self._order = rng.permutation(len(x))
        self._num_random = 0
        self._num_told = 0  # without having been asked for
        self._asked = np.zeros(len(x), dtype=np.bool_)
        self._has_sources = bool(np.isfinite(sources).any())
        self.best = math.inf
        """The smallest log seconds that were measured."""

    def ask(self, num: int) -> list[int]:
        """The next points to measure, each once; fewer than `num` when all others were asked for."""
        chosen: list[int] = []
        while len(chosen) < num and not self._asked.all():
            chosen.append(self._next())
            self._asked[chosen[-1]] = True
        return chosen

    def tell(self, records: Sequence[tuple[int, float]]) -> None:
        """Take in points with their log seconds, infinite where one does not work. One that was not asked for is taken
        for the trial of a search before this one, in which every other one was at random."""
        for index, log_seconds in records:
            self._num_told += int(not self._asked[index])
            self._asked[index] = True
            self.best = min(self.best, log_seconds)
            self.model.observe(index, log_seconds)

    def promise(self, rival_s: float = math.inf) -> float:
        """Improvement, in log seconds, that is expected of the best point left, over what was measured or a rival;
        infinite while nothing works, zero when nothing is left."""
        best = min(self.best, math.log(rival_s))
        if self._asked.all() or math.isinf(best):
            return 0.0 if self._asked.all() else math.inf
        return float(self._gains(best, self.model.works())[~self._asked].max())

    def scores(self) -> FloatArray:
        """float64[N]: which points promise more than others; those that are too likely to fail, least of all."""
        works = self.model.works()
        if math.isfinite(self.best):
            gains = self._gains(self.best, works)
            if (gains[~self._asked] >= _NOTHING).any():
                return gains
        score = -self.model.predict()
        score[self._unsure(works)] = -np.finfo(np.float64).max
        return score

    def _next(self) -> int:
        if self._is_random_next():
            self._num_random += 1
            left = self._order[~self._asked[self._order]]
            return int(left[np.argmin(self._unsure(self.model.works())[left])])
        score = self.scores()
        score[self._asked] = -math.inf
        return int(self._order[np.argmax(score[self._order])])  # equals at random

    def _gains(self, best: float, works: FloatArray | None) -> FloatArray:
        """float64[N]: what each point is expected to gain, in the leading opinion."""
        gains = self.model.expected_improvement(best, self.model.leader)
        return gains if works is None else gains * works

    def _unsure(self, works: FloatArray | None) -> BoolArray:
        """bool[N]: points that are too likely to fail."""
        if works is None:
            return np.zeros(len(self._asked), dtype=np.bool_)
        unsure: BoolArray = works < _SURE * works[~self._asked].max(initial=0.0)
        return unsure

    def _is_random_next(self) -> bool:
        if self._num_random + self._num_told // 2 >= _NUM_RANDOM or (self._has_sources and self.model.trust > _TRUSTED):
            return False
        return int(self._asked.sum()) % 2 == (1 if self._has_sources else 0)
