"""U-statistics of any symmetric kernel: value, Hoeffding parts, unbiased variance components.

The sample variance is the U-statistic of (x - y)²/2, Kendall's tau that of
sign(x₁ - x₂) sign(y₁ - y₂), the third k-statistic one of order 3, and the sample covariance that of
½ (s₁ - s₂)(z₁ - z₂), the kernel that has closed forms here (``covariance_*``), linear in the sample
size. The general functions follow the definitions, tuple by tuple: they are what the closed forms
are judged by.

Samples are one array ``(n, ...)`` or a *tuple* of arrays that share the leading length n, such as
``(scores (n, d), rewards (n,))``; a list is read as an array. A kernel is called as
``kernel(first, second, ...)`` on samples of the same structure whose leading axis runs over tuples,
and returns one value, of any shape, per tuple: ``(tuples, ...)``. It receives float64 arrays.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ustat_pg.validation import InputError, finite_array, integer
from ustat_pg.validation import probabilities as checked_probabilities

__all__ = [
    "Hoeffding",
    "VarianceComponents",
    "covariance_kernel",
    "covariance_ustatistic",
    "covariance_variance_components",
    "hoeffding",
    "ustatistic",
    "variance_components",
]

FloatArray: TypeAlias = NDArray[np.float64]
Samples: TypeAlias = ArrayLike | tuple[ArrayLike, ...]
Kernel: TypeAlias = Callable[..., Any]

SYMMETRY_TOLERANCE = 1e-9
"""How far swapped arguments may move a kernel, relative to its largest value checked."""

SYMMETRY_TUPLES = 32
"""On how many tuples of the sample a kernel is checked for symmetry."""

CHUNK_ENTRIES = 2**21
"""Numbers passed to a kernel in one call where the caller names no chunk (16 MiB)."""


@dataclass(frozen=True, eq=False)
class Hoeffding:
    """The parts of one value of a U-statistic of order 2, of which only ``mean`` is not random.

    Attributes:
        mean: E h.
        first: 2/n Σᵢ (h₁(xᵢ) - E h), the part that is a sum of independent terms.
        second: 2/(n(n-1)) Σ_{i<j} h₂(xᵢ, xⱼ), uncorrelated with ``first``.
    """

    mean: FloatArray
    first: FloatArray
    second: FloatArray

    @property
    def total(self) -> FloatArray:
        """The U-statistic itself, mean + first + second."""
        return np.asarray(self.mean + self.first + self.second)


@dataclass(frozen=True, eq=False)
class VarianceComponents:
    """Unbiased estimates of the variances behind a U-statistic of order 2; they may be negative.

    Attributes:
        zeta_1: estimate of ζ₁ = Var h₁(X).
        zeta_2: estimate of ζ₂ = Var h(X₁, X₂).
        variance: estimate of Var U = 2/(n(n-1)) (2(n-2) ζ₁ + ζ₂).
    """

    zeta_1: FloatArray
    zeta_2: FloatArray
    variance: FloatArray


@dataclass(frozen=True, eq=False)
class _Sample:
    """Checked samples, and how to hand rows of them to a kernel in the structure they came in."""

    arrays: tuple[FloatArray, ...]
    is_tuple: bool

    @property
    def size(self) -> int:
        return len(self.arrays[0])

    @property
    def entries(self) -> int:
        return sum(array[0].size for array in self.arrays)

    def take(self, rows: NDArray[np.intp]) -> Any:
        taken = tuple(array[rows] for array in self.arrays)
        return taken if self.is_tuple else taken[0]


def _sample(name: str, samples: Samples) -> _Sample:
    is_tuple = isinstance(samples, tuple)
    parts = samples if isinstance(samples, tuple) else (samples,)
    if not parts:
        raise InputError(f"{name} is an empty tuple: it must hold at least one array")
    arrays = []
    for position, part in enumerate(parts):
        label = f"{name}[{position}]" if is_tuple else name
        array = finite_array(label, part)
        if array.ndim == 0:
            raise InputError(
                f"{label} is a single number: it must be an array whose leading axis runs over the "
                "samples (a tuple stands for several such arrays; pass plain data as a list)"
            )
        arrays.append(array)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise InputError(f"{name} has parts of lengths {lengths}: they must share the leading axis")
    return _Sample(tuple(arrays), is_tuple)


def _at_least(sample: _Sample, minimum: int, why: str) -> int:
    if sample.size < minimum:
        raise InputError(f"{sample.size} sample(s) given: {why} needs at least {minimum}")
    return sample.size


def _chunk(chunk: int | None, sample: _Sample, order: int) -> int:
    if chunk is not None:
        return integer("chunk", chunk)
    return max(1, CHUNK_ENTRIES // (order * sample.entries))


def _evaluate(kernel: Kernel, *arguments: Any, tuples: int) -> FloatArray:
    returned = kernel(*arguments)
    if np.shape(returned)[:1] != (tuples,):
        raise InputError(
            f"the kernel returned shape {np.shape(returned)} for {tuples} tuples: "
            f"it must return ({tuples}, ...), one value per tuple"
        )
    return finite_array("the kernel's value", returned)


def _pilot(kernel: Kernel, sample: _Sample, order: int) -> FloatArray:
    """Return the kernel's median on a few tuples, having refused a kernel not symmetric on them."""
    n = sample.size
    if math.comb(n, order) <= SYMMETRY_TUPLES:
        rows = np.array(list(itertools.combinations(range(n), order)))
    else:
        # A fixed seed: whether a kernel is refused must depend on the kernel and the sample only.
        generator = np.random.default_rng(0)
        rows = np.array(
            [generator.choice(n, size=order, replace=False) for _ in range(SYMMETRY_TUPLES)]
        )
    value = _evaluate(kernel, *(sample.take(column) for column in rows.T), tuples=len(rows))
    allowed = SYMMETRY_TOLERANCE * np.abs(value).max()
    # Neighbouring swaps generate every permutation.
    for left in range(order - 1):
        swapped = rows.copy()
        swapped[:, [left, left + 1]] = rows[:, [left + 1, left]]
        other = _evaluate(kernel, *(sample.take(column) for column in swapped.T), tuples=len(rows))
        if other.shape != value.shape or np.abs(other - value).max() > allowed:
            raise InputError(
                f"the kernel is not symmetric: swapping its arguments {left} and {left + 1} "
                "changes its value on the samples; average it over the orders of its arguments"
            )
    return np.asarray(np.median(value, axis=0))


def _subsets(n: int, order: int, chunk: int) -> Iterator[NDArray[np.intp]]:
    """Yield all subsets of ``order`` of n indices as arrays ``(order, at most chunk)``."""
    subsets = itertools.combinations(range(n), order)
    while True:
        flat = itertools.chain.from_iterable(itertools.islice(subsets, chunk))
        rows = np.fromiter(flat, dtype=np.intp).reshape(-1, order)
        if not len(rows):
            return
        yield rows.T


def ustatistic(
    kernel: Kernel, samples: Samples, order: int = 2, chunk: int | None = None
) -> FloatArray:
    """Return the U-statistic: the mean of a symmetric kernel over all subsets of the samples.

    U = binom(n, m)⁻¹ Σ_{i₁<...<iₘ} h(x_{i₁}, ..., x_{iₘ}), of expectation E h(X₁, ..., Xₘ)

    Source: Hoeffding (1948), "A class of statistics with asymptotically normal distribution".

    Args:
        kernel: symmetric h of ``order`` arguments, vectorised (see the module).
        samples: array ``(n, ...)`` or a tuple of arrays that share the leading length n.
        order: number m of arguments of the kernel.
        chunk: subsets per call of the kernel; it bounds the memory (default: about 16 MiB of
            arguments a call). The time grows as binom(n, m) in any case.

    Returns:
        Array of the shape of one kernel value.

    Raises:
        InputError: samples hold NaN or infinity or differ in length, n < order, or the kernel
            returns another leading length, a value that is not finite, or is found not symmetric
            (it is tried on a few tuples of the sample, with neighbouring arguments swapped).

    >>> x = [1.0, 2.0, 4.0, 9.0]
    >>> f"{ustatistic(lambda a, b: (a - b) ** 2 / 2, x):.12f} {np.var(x, ddof=1):.12f}"
    '12.666666666667 12.666666666667'
    """
    order = integer("order", order)
    sample = _sample("samples", samples)
    n = _at_least(sample, order, f"a U-statistic of order {order}")
    chunk = _chunk(chunk, sample, order)
    # Summed around a typical value, rounding scales with the kernel's spread, not with its size.
    pilot = _pilot(kernel, sample, order)
    total = np.zeros_like(pilot)
    for subsets in _subsets(n, order, chunk):
        arguments = (sample.take(rows) for rows in subsets)
        value = _evaluate(kernel, *arguments, tuples=subsets.shape[1])
        total = total + (value - pilot).sum(axis=0)
    return np.asarray(pilot + total / math.comb(n, order))


def covariance_kernel(first: tuple[Any, Any], second: tuple[Any, Any]) -> FloatArray:
    """Return the kernel whose U-statistic is the sample covariance of score and reward.

    h((s₁, z₁), (s₂, z₂)) = ½ (s₁ - s₂)(z₁ - z₂)

    Source: Lemma 1 (ustatistic).

    Args:
        first: tuple (scores ``(pairs, ...)``, rewards ``(pairs,)``).
        second: the same, for the pairs' other members.

    Returns:
        Array ``(pairs, ...)`` of the scores' shape.

    Raises:
        InputError: the two sides differ in shape, or rewards are not ``(pairs,)``. (That entries
            are finite is checked once, by the functions that take samples.)

    >>> covariance_kernel((np.array([[1.0, 0.0]]), np.array([3.0])),
    ...                   (np.array([[0.0, 2.0]]), np.array([1.0])))
    array([[ 1., -2.]])
    """
    (scores, rewards), (other_scores, other_rewards) = first, second
    shapes = [np.shape(part) for part in (scores, rewards, other_scores, other_rewards)]
    if shapes[0] != shapes[2] or shapes[1] != shapes[3] or shapes[1] != shapes[0][:1]:
        raise InputError(
            f"scores and rewards have shapes {shapes[:2]} and {shapes[2:]}: "
            "both sides must be ((pairs, ...), (pairs,))"
        )
    step = np.subtract(scores, other_scores, dtype=np.float64)
    difference = np.subtract(rewards, other_rewards, dtype=np.float64)
    return np.asarray(0.5 * step * difference.reshape(-1, *(1,) * (step.ndim - 1)))


def _checked(scores: ArrayLike, rewards: ArrayLike, minimum: int) -> tuple[FloatArray, FloatArray]:
    """Return checked scores ``(..., n, d)`` and rewards ``(..., n)``."""
    s = finite_array("scores", scores)
    z = finite_array("rewards", rewards)
    if s.ndim < 2 or z.shape != s.shape[:-1]:
        raise InputError(
            f"scores have shape {s.shape} and rewards {z.shape}: "
            "they must be (..., n, d) and (..., n)"
        )
    if s.shape[-2] < minimum:
        raise InputError(f"{s.shape[-2]} sample(s) given: at least {minimum} are needed")
    return s, z


def _centred(scores: ArrayLike, rewards: ArrayLike, minimum: int) -> tuple[FloatArray, FloatArray]:
    """Return checked scores ``(..., n, d)`` and rewards ``(..., n, 1)`` of mean zero along n."""
    s, z = _checked(scores, rewards, minimum)
    z = z[..., None]
    # The first sample goes first: a common offset, however large, then leaves no rounding behind,
    # and scores or rewards that are all equal become exact zeros.
    with np.errstate(over="ignore", invalid="ignore"):
        s = s - s[..., :1, :]
        z = z - z[..., :1, :]
        s -= s.mean(axis=-2, keepdims=True)
        z -= z.mean(axis=-2, keepdims=True)
    return s, z


_OVERFLOW = "scores and rewards are so large that their products overflow: rescale them"


def _no_overflow(*results: FloatArray) -> None:
    if not all(np.isfinite(result).all() for result in results):
        raise InputError(_OVERFLOW)


_FLOAT64 = np.dtype(np.float64)

_COLUMNS = 1024
"""Columns of scores that the compiled loop takes at once."""


def _covariance_body(scores: FloatArray, rewards: FloatArray, out: FloatArray) -> bool:
    """Fill ``out`` (L d,) with the covariances of L samples; say whether all are finite.

    Arguments:
        scores: (L n, d), sample after sample; rewards: (L n,).

    In IEEE arithmetic NaN and infinity spread: an input that is not finite makes a value that is
    not, be it multiplied by 0. So the inputs are not looked at apart from the sums.
    """
    rows, d = scores.shape
    samples = len(out) // d
    n = rows // samples
    even = n - n % 4
    alone = 1 + (n - 1) % 7
    scale = 1.0 / (n - 1)
    not_finite = 0
    for k in range(samples):
        s, z = scores[k * n : (k + 1) * n], rewards[k * n : (k + 1) * n]
        # The first sample goes first, as in _centred. The centred rewards sum to 0, so the scores
        # need not be centred besides.
        origin = z[0]
        mean = 0.0
        # The second round takes away the rounding of the first.
        for _ in range(2):
            # Four sums side by side: one alone would wait for itself at each addition.
            t0 = t1 = t2 = t3 = 0.0
            for i in range(0, even, 4):
                t0 += z[i] - origin - mean
                t1 += z[i + 1] - origin - mean
                t2 += z[i + 2] - origin - mean
                t3 += z[i + 3] - origin - mean
            for i in range(even, n):
                t0 += z[i] - origin - mean
            mean += (t0 + t1 + t2 + t3) / n
        # So many columns at once that their sums stay in the nearest cache, and seven rows at once,
        # so that a sum is loaded and stored once for seven products.
        for left in range(0, d, _COLUMNS):
            right = min(left + _COLUMNS, d)
            first, sums = s[0, left:right], out[k * d + left : k * d + right]
            for p in range(right - left):
                sums[p] = 0.0
            for i in range(1, alone):
                w0 = (z[i] - origin - mean) * scale
                s0 = s[i, left:right]
                for p in range(right - left):
                    sums[p] += w0 * (s0[p] - first[p])
            for i in range(alone, n, 7):
                w0 = (z[i] - origin - mean) * scale
                w1 = (z[i + 1] - origin - mean) * scale
                w2 = (z[i + 2] - origin - mean) * scale
                w3 = (z[i + 3] - origin - mean) * scale
                w4 = (z[i + 4] - origin - mean) * scale
                w5 = (z[i + 5] - origin - mean) * scale
                w6 = (z[i + 6] - origin - mean) * scale
                s0, s1, s2 = s[i, left:right], s[i + 1, left:right], s[i + 2, left:right]
                s3, s4, s5 = s[i + 3, left:right], s[i + 4, left:right], s[i + 5, left:right]
                s6 = s[i + 6, left:right]
                for p in range(right - left):
                    q = first[p]
                    low = (w0 * (s0[p] - q) + w1 * (s1[p] - q)) + w2 * (s2[p] - q)
                    high = (w3 * (s3[p] - q) + w4 * (s4[p] - q)) + w5 * (s5[p] - q)
                    sums[p] += (low + high) + w6 * (s6[p] - q)
            for p in range(right - left):
                not_finite += not np.isfinite(sums[p])
    return not_finite == 0


@functools.cache
def _covariances() -> Callable[..., bool]:
    """:func:`_covariance_body`, compiled at its first use: numba takes a while to import."""
    from numba import types

    from .compiled import body

    # Read-only types stand for writable arrays too, and any layout for a contiguous one: all that
    # comes meets one compilation.
    scores = types.Array(types.float64, 2, "C", readonly=True)
    rewards = types.Array(types.float64, 1, "A", readonly=True)
    signature = types.boolean(scores, rewards, types.Array(types.float64, 1, "C"))
    compiled: Callable[..., bool] = body(_covariance_body, signature=signature)
    return compiled


def covariance_ustatistic(scores: ArrayLike, rewards: ArrayLike) -> FloatArray:
    """Return the U-statistic of :func:`covariance_kernel` in O(n d).

    U = 2/(n(n-1)) Σ_{i<j} ½ (sᵢ - sⱼ)(zᵢ - zⱼ) = 1/(n-1) Σᵢ (sᵢ - s₁)(zᵢ - z̄)

    Source: Lemma 1 (ustatistic); the kernel does not change when scores or rewards are shifted.

    Args:
        scores: ``(..., n, d)``, n >= 2. float64 in C order without leading axes is read once and
            not copied.
        rewards: ``(..., n)``, with the same leading axes.

    Returns:
        Array ``(..., d)``.

    Raises:
        InputError: NaN or infinity, shapes that do not match, n < 2, or products that overflow.

    >>> covariance_ustatistic([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 0.0, 0.0])
    array([ 0.33333333, -0.16666667])
    """
    # On a small group checks by NumPy calls would take most of the time: what is plainly of the
    # right kind goes first, and what is wrong with the rest, or with the values, is said below.
    if (
        type(scores) is np.ndarray
        and type(rewards) is np.ndarray
        and scores.dtype is rewards.dtype is _FLOAT64
        and scores.ndim == 2
        and scores.flags.c_contiguous
    ):
        n, d = scores.shape
        if n > 1 and d and rewards.shape == (n,):
            value = np.empty(d)
            try:
                if _covariances()(scores, rewards, value):
                    return value
            except TypeError:
                pass  # Entries out of line with the machine's words: copied below.
    s, z = _checked(scores, rewards, 2)
    leading, d = s.shape[:-2], s.shape[-1]
    value = np.empty((*leading, d))
    if not _covariances()(np.ascontiguousarray(s).reshape(-1, d), z.ravel(), value.reshape(-1)):
        raise InputError(_OVERFLOW)
    return value


def _add_rows(total: FloatArray, rows: NDArray[np.intp], value: FloatArray) -> None:
    """Add each value to the row of ``total`` that it belongs to; ``rows`` must not decrease."""
    present, starts = np.unique(rows, return_index=True)
    total[present] += np.add.reduceat(value, starts, axis=0)


def _projection(
    kernel: Kernel, points: _Sample, atoms: _Sample, weights: FloatArray, chunk: int
) -> FloatArray:
    """Return h₁ at every point: the kernel's mean when its second argument follows the law."""
    total: FloatArray | None = None
    count = atoms.size
    for start in range(0, points.size * count, chunk):
        stop = min(start + chunk, points.size * count)
        rows, columns = np.divmod(np.arange(start, stop), count)
        value = _evaluate(kernel, points.take(rows), atoms.take(columns), tuples=stop - start)
        weighted = value * weights[columns].reshape(-1, *(1,) * (value.ndim - 1))
        if total is None:
            total = np.zeros((points.size, *value.shape[1:]))
        _add_rows(total, rows, weighted)
    assert total is not None
    return total


def hoeffding(
    kernel: Kernel,
    samples: Samples,
    atoms: Samples,
    probabilities: ArrayLike,
    chunk: int | None = None,
) -> Hoeffding:
    """Return the Hoeffding parts of a U-statistic of order 2 under a known finite law.

    U = E h + 2/n Σᵢ (h₁(xᵢ) - E h) + 2/(n(n-1)) Σ_{i<j} h₂(xᵢ, xⱼ)
    h₁(x) = E h(x, X'),  h₂(x, y) = h(x, y) - h₁(x) - h₁(y) + E h

    Source: Hoeffding (1948), "A class of statistics with asymptotically normal distribution".

    The parts are uncorrelated where the samples are independent draws from the law, which is taken
    on trust; that they sum to U holds for all samples.

    Args:
        kernel: symmetric h of two arguments, vectorised (see the module).
        samples: array ``(n, ...)`` or a tuple of arrays that share the leading length n >= 2.
        atoms: the values that a sample takes, in the samples' structure, leading length m.
        probabilities: ``(m,)``, their probabilities.
        chunk: pairs per call of the kernel (default: about 16 MiB of arguments a call).

    Raises:
        InputError: as :func:`ustatistic`; or atoms of another structure than the samples', or
            probabilities that are negative, do not sum to 1 or are not one per atom.

    >>> parts = hoeffding(lambda a, b: (a - b) ** 2 / 2, [1.0, 1.0, 0.0], [0.0, 1.0], [0.75, 0.25])
    >>> f"{parts.mean:.4f} + {parts.first:.4f} + {parts.second:.4f} = {parts.total:.4f}"
    '0.1875 + 0.2083 + -0.0625 = 0.3333'
    """
    sample, support = _sample("samples", samples), _sample("atoms", atoms)
    n = _at_least(sample, 2, "a U-statistic of order 2")
    one, other = ([a.shape[1:] for a in s.arrays] for s in (sample, support))
    if sample.is_tuple != support.is_tuple or one != other:
        raise InputError(
            f"a sample has parts of shapes {one} and an atom {other}: they must be of one structure"
        )
    weights = checked_probabilities("probabilities", probabilities, 1)
    if len(weights) != support.size:
        raise InputError(
            f"{len(weights)} probabilities for {support.size} atoms: there must be one per atom"
        )
    chunk = _chunk(chunk, sample, 2)
    _pilot(kernel, sample, 2)
    h_1_atoms = _projection(kernel, support, support, weights, chunk)
    h_1 = _projection(kernel, sample, support, weights, chunk)
    mean = np.tensordot(weights, h_1_atoms, axes=1)
    first = 2 * (h_1 - mean).mean(axis=0)
    # By its definition, not as the rest U - mean - first: that the parts sum to U stays a test.
    second = np.zeros_like(first)
    for i, j in _subsets(n, 2, chunk):
        value = _evaluate(kernel, sample.take(i), sample.take(j), tuples=len(i))
        second = second + (value - h_1[i] - h_1[j] + mean).sum(axis=0)
    return Hoeffding(np.asarray(mean), np.asarray(first), np.asarray(second / math.comb(n, 2)))


def _components(row_squares: FloatArray, squares: FloatArray, n: int) -> VarianceComponents:
    """Return the components from Σᵢ (Σ_{j≠i} kᵢⱼ)² and Σ_{i≠j} kᵢⱼ², for k = h - U."""
    falling = [math.perm(n, count) for count in range(5)]
    square = squares / falling[2]
    shared_one = (row_squares - squares) / falling[3]
    # Since Σ_{i≠j} kᵢⱼ = 0, the tuples of four different samples are minus those with one repeated.
    disjoint = (2 * squares - 4 * row_squares) / falling[4]
    # Var U = E U² - (E h)², and U² vanishes for the centred kernel.
    return VarianceComponents(
        np.asarray(shared_one - disjoint), np.asarray(square - disjoint), np.asarray(-disjoint)
    )


def variance_components(
    kernel: Kernel, samples: Samples, chunk: int | None = None
) -> VarianceComponents:
    """Return exactly unbiased estimates of ζ₁, ζ₂ and Var U for a U-statistic of order 2.

    ζ₁ = Var h₁(X) = E h(X₁, X₂) h(X₁, X₃) - (E h)²
    ζ₂ = Var h(X₁, X₂) = E h(X₁, X₂)² - (E h)²
    Var U = 2/(n(n-1)) (2(n-2) ζ₁ + ζ₂)

    Each expectation is replaced by its own U-statistic, (E h)² by the mean of h(xᵢ, xⱼ) h(xₖ, xₗ)
    over all i, j, k, l that differ. So, unlike a plug-in, the estimates **may be negative**, ζ₁
    above all where the kernel is nearly degenerate: average them over samples before taking a root.

    Source: Hoeffding (1948), section 5, for the variance.

    Args:
        kernel: symmetric h of two arguments, vectorised (see the module).
        samples: array ``(n, ...)`` or a tuple of arrays that share the leading length n >= 4.
        chunk: pairs per call of the kernel (default: about 16 MiB of arguments a call); in all
            n(n-1) pairs are evaluated, and n kernel values are held besides.

    Returns:
        The three estimates, each of the shape of one kernel value.

    Raises:
        InputError: as :func:`ustatistic`; or n < 4.

    >>> found = variance_components(lambda a, b: (a - b) ** 2 / 2, [0.0, 1.0, 2.0, 5.0])
    >>> [round(float(estimate), 10) for estimate in (found.zeta_1, found.zeta_2, found.variance)]
    [12.25, 32.6666666667, 13.6111111111]
    """
    sample = _sample("samples", samples)
    n = _at_least(sample, 4, "an unbiased variance of a U-statistic of order 2")
    chunk = _chunk(chunk, sample, 2)
    # The components do not change when a constant is taken off the kernel; their rounding does.
    pilot = _pilot(kernel, sample, 2)
    rows_total = np.zeros((n, *pilot.shape))
    squares = np.zeros_like(pilot)
    for start in range(0, n * (n - 1), chunk):
        rows, columns = np.divmod(np.arange(start, min(start + chunk, n * (n - 1))), n - 1)
        columns += columns >= rows
        value = _evaluate(kernel, sample.take(rows), sample.take(columns), tuples=len(rows)) - pilot
        _add_rows(rows_total, rows, value)
        squares = squares + (value**2).sum(axis=0)
    centre = rows_total.mean(axis=0) / (n - 1)
    row_squares = ((rows_total - (n - 1) * centre) ** 2).sum(axis=0)
    return _components(row_squares, squares - n * (n - 1) * centre**2, n)


def covariance_variance_components(scores: ArrayLike, rewards: ArrayLike) -> VarianceComponents:
    """Return :func:`variance_components` of :func:`covariance_kernel` in O(n d).

    With s and z centred in the sample, the kernel's row and pair sums are power sums:
    Σ_{j≠i} (hᵢⱼ - U) = n/2 (sᵢ zᵢ - 1/n Σ s z)
    Σ_{i≠j} (hᵢⱼ - U)² = ½ (n Σ s² z² + Σ s² Σ z²) - 1/(n-1) (Σ s z)²

    Like those, they are exactly unbiased, and so **may be negative**.

    Source: Hoeffding (1948), section 5; kernel of Lemma 1 (ustatistic).

    Args:
        scores: ``(..., n, d)``, n >= 4.
        rewards: ``(..., n)``, with the same leading axes.

    Returns:
        The three estimates, each ``(..., d)``: one per coordinate of the scores.

    Raises:
        InputError: NaN or infinity, shapes that do not match, n < 4, or products that overflow.

    >>> scores = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-1.0, 2.0]]
    >>> covariance_variance_components(scores, [1.0, 0.0, 0.0, 0.0]).variance
    array([0.11111111, 0.0625    ])
    """
    s, z = _centred(scores, rewards, 4)
    n = s.shape[-2]
    with np.errstate(over="ignore", invalid="ignore"):
        product = s * z
        total = product.sum(axis=-2)
        fourth = (product**2).sum(axis=-2)
        squares = (n * fourth + (s**2).sum(axis=-2) * (z**2).sum(axis=-2)) / 2
        squares -= total**2 / (n - 1)
        # Two passes: Σ (s z)² - (Σ s z)²/n would cancel where s z hardly varies.
        product -= total[..., None, :] / n
        row_squares = n**2 / 4 * (product**2).sum(axis=-2)
    _no_overflow(squares, row_squares)
    return _components(row_squares, squares, n)
