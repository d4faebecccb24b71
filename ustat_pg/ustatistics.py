"""U-statistics of any symmetric kernel with their Hoeffding parts, and of the covariance kernel in O(n d).

The sample variance is the U-statistic of (x - y)²/2, Kendall's tau that of
sign(x₁ - x₂) sign(y₁ - y₂), the third k-statistic one of order 3, and the sample covariance is that of
½ (s₁ - s₂)(z₁ - z₂), the kernel with closed forms here (``covariance_*``). The general functions follow
the definitions, tuple by tuple, and tests compare the closed forms with them. Sources: Hoeffding (1948), "A
class of statistics with asymptotically normal distribution"; Lemma 1 (ustatistic).

Samples are one array ``(n, ...)`` or a *tuple* of arrays that share the leading length n, such as
``(scores (n, d), rewards (n,))``; a list is read as an array. A kernel is called as
``kernel(first, second, ...)`` on samples of the same structure whose leading axis runs over tuples,
and returns one value, of any shape, per tuple: ``(tuples, ...)``. The kernel receives float64 arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ustat_pg.display.shown import Shown
from ustat_pg.validation import InputError, finite_array, integer
from ustat_pg.validation import probabilities as checked_probabilities

from .rounding import GIVEN

FloatArray: TypeAlias = NDArray[np.float64]
Samples: TypeAlias = ArrayLike | tuple[ArrayLike, ...]
Kernel: TypeAlias = Callable[..., Any]


SYMMETRY_TUPLES = 32
"""The number of tuples of the sample on which a kernel's symmetry is checked."""

CHUNK_ENTRIES = 2**21
"""Numbers passed to a kernel in one call (16 MiB)."""


@dataclass(frozen=True, eq=False)
class Hoeffding(Shown):
    """The parts of one value of a U-statistic of order 2; only ``mean`` is not random.

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
class VarianceComponents(Shown):
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
    """Checked samples, with a method that passes rows to a kernel in the original structure."""

    arrays: tuple[FloatArray, ...]
    is_tuple: bool

    @property
    def size(self) -> int:
        return len(self.arrays[0])

    @property
    def at_once(self) -> int:
        """The number of samples in one call of a kernel."""
        return max(1, CHUNK_ENTRIES // sum(array[0].size for array in self.arrays))

    def take(self, rows: NDArray[np.intp]) -> Any:
        taken = tuple(array[rows] for array in self.arrays)
        return taken if self.is_tuple else taken[0]


def _sample(name: str, samples: Samples, least: int = 1) -> _Sample:
    parts = samples if isinstance(samples, tuple) else (samples,)
    arrays = tuple(finite_array(name, part) for part in parts)
    if not arrays or any(array.ndim == 0 for array in arrays):
        raise InputError(
            f"{name} must be an array whose leading axis runs over the samples, or a tuple of such "
            "arrays (pass plain data as a list)"
        )
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise InputError(f"{name} has parts of lengths {lengths}: they must share the leading axis")
    if lengths[0] < least:
        raise InputError(f"{lengths[0]} sample(s) given: at least {least} are needed")
    return _Sample(arrays, isinstance(samples, tuple))


def _values(kernel: Kernel, *arguments: Any) -> FloatArray:
    """The kernel's values, one per tuple."""
    returned = kernel(*arguments)
    first = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
    if np.shape(returned)[:1] != (len(first),):
        raise InputError(
            f"the kernel returned shape {np.shape(returned)} for {len(first)} tuples: "
            f"it must return ({len(first)}, ...), one value per tuple"
        )
    return finite_array("the kernel's value", returned)


@lru_cache
def _tuples(size: int, order: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A few tuples of samples, and the same tuples in another order, (order, SYMMETRY_TUPLES) each."""
    # The seed is fixed, because an error must depend only on the kernel and the sample.
    draws = np.random.default_rng(0)
    rows = np.array([draws.permutation(size)[:order] for _ in range(SYMMETRY_TUPLES)]).T
    return rows, draws.permuted(rows, axis=0)


def _symmetric(kernel: Kernel, sample: _Sample, order: int) -> None:
    """Raise an error if a kernel is not symmetric on a few tuples of the sample."""
    value, other = (
        _values(kernel, *map(sample.take, indices)) for indices in _tuples(sample.size, order)
    )
    if np.abs(other - value).max() > GIVEN * np.abs(value).max():
        raise InputError(
            "the kernel is not symmetric: another order of its arguments changes its value on the "
            "samples; average it over the orders of its arguments"
        )


def _subsets(sample: _Sample, order: int) -> Iterator[NDArray[np.intp]]:
    """Yield all subsets of ``order`` samples as arrays of indices ``(order, tuples)``."""
    subsets = itertools.combinations(range(sample.size), order)
    while some := list(itertools.islice(subsets, max(1, sample.at_once // order))):
        yield np.array(some).T


def ustatistic(kernel: Kernel, samples: Samples, order: int = 2) -> FloatArray:
    """Return the U-statistic: the mean of a symmetric kernel over all subsets of the samples.

    U = binom(n, m)⁻¹ Σ_{i₁<...<iₘ} h(x_{i₁}, ..., x_{iₘ}), of expectation E h(X₁, ..., Xₘ)

    Args:
        kernel: symmetric h of ``order`` arguments, vectorised (see the module).
        samples: array ``(n, ...)`` or a tuple of arrays that share the leading length n.
        order: number m of arguments of the kernel. The time grows as binom(n, m).

    Raises:
        InputError: samples that are not finite or differ in length, n < order, or a kernel that returns
            another leading length or is found not symmetric on a few tuples of the sample.

    >>> x = [1.0, 2.0, 4.0, 9.0]
    >>> f"{ustatistic(lambda a, b: (a - b) ** 2 / 2, x):.12f} {np.var(x, ddof=1):.12f}"
    '12.666666666667 12.666666666667'
    """
    order = integer("order", order)
    sample = _sample("samples", samples, order)
    _symmetric(kernel, sample, order)
    total: Any = 0.0
    for subsets in _subsets(sample, order):
        total = total + _values(kernel, *map(sample.take, subsets)).sum(axis=0)
    return np.asarray(total / math.comb(sample.size, order))


def covariance_kernel(first: tuple[Any, Any], second: tuple[Any, Any]) -> FloatArray:
    """Return the kernel whose U-statistic is the sample covariance of score and reward.

    h((s₁, z₁), (s₂, z₂)) = ½ (s₁ - s₂)(z₁ - z₂)

    Args:
        first: tuple (scores ``(pairs, ...)``, rewards ``(pairs,)``).
        second: the same, for the pairs' other members.

    >>> covariance_kernel((np.array([[1.0, 0.0]]), np.array([3.0])),
    ...                   (np.array([[0.0, 2.0]]), np.array([1.0])))
    array([[ 1., -2.]])
    """
    (scores, rewards), (other_scores, other_rewards) = first, second
    step = np.subtract(scores, other_scores, dtype=np.float64)
    difference = np.subtract(rewards, other_rewards, dtype=np.float64)
    return np.asarray(0.5 * step * difference.reshape(-1, *(1,) * (step.ndim - 1)))


def _centred(scores: ArrayLike, rewards: ArrayLike, least: int) -> tuple[FloatArray, FloatArray]:
    """Return checked scores ``(..., n, d)`` and rewards ``(..., n, 1)`` of mean zero along n."""
    s, z = finite_array("scores", scores), finite_array("rewards", rewards)
    if s.ndim < 2 or z.shape != s.shape[:-1]:
        raise InputError(
            f"scores have shape {s.shape} and rewards {z.shape}: they must be (..., n, d) and (..., n)"
        )
    if s.shape[-2] < least:
        raise InputError(f"{s.shape[-2]} sample(s) given: at least {least} are needed")
    z = z[..., None]
    # First subtract the first sample. Then a common offset, however large, adds no rounding error,
    # and scores or rewards that are all equal become exact zeros.
    s = s - s[..., :1, :]
    z = z - z[..., :1, :]
    s -= s.mean(axis=-2, keepdims=True)
    z -= z.mean(axis=-2, keepdims=True)
    return s, z


def covariance_ustatistic(scores: ArrayLike, rewards: ArrayLike) -> FloatArray:
    """Return the U-statistic of :func:`covariance_kernel` in O(n d).

    U = 2/(n(n-1)) Σ_{i<j} ½ (sᵢ - sⱼ)(zᵢ - zⱼ) = 1/(n-1) Σᵢ (sᵢ - s̄)(zᵢ - z̄)

    Args:
        scores: ``(..., n, d)``, n >= 2.
        rewards: ``(..., n)``, with the same leading axes.

    >>> covariance_ustatistic([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 0.0, 0.0])
    array([ 0.33333333, -0.16666667])
    """
    s, z = _centred(scores, rewards, 2)
    value = np.einsum("...nd,...n->...d", s, z[..., 0]) / (s.shape[-2] - 1)
    return np.asarray(value)


def _projection(kernel: Kernel, points: _Sample, atoms: _Sample, weights: FloatArray) -> FloatArray:
    """Return h₁ at every point: the kernel's mean when its second argument follows the law."""
    count = atoms.size
    step = max(1, points.at_once // (2 * count))
    means = []
    for start in range(0, points.size, step):
        rows = np.repeat(np.arange(start, min(start + step, points.size)), count)
        columns = np.resize(np.arange(count), len(rows))
        value = _values(kernel, points.take(rows), atoms.take(columns))
        by_point = value.reshape(-1, count, *value.shape[1:])
        means.append(np.tensordot(by_point, weights, axes=(1, 0)))
    return np.concatenate(means)


def hoeffding(
    kernel: Kernel,
    samples: Samples,
    atoms: Samples,
    probabilities: ArrayLike,
) -> Hoeffding:
    """Return the Hoeffding parts of a U-statistic of order 2 under a known finite law.

    U = E h + 2/n Σᵢ (h₁(xᵢ) - E h) + 2/(n(n-1)) Σ_{i<j} h₂(xᵢ, xⱼ)
    h₁(x) = E h(x, X'),  h₂(x, y) = h(x, y) - h₁(x) - h₁(y) + E h

    The parts are uncorrelated where the samples are independent draws from the law, which is not
    checked. Their sum is U for all samples.

    Args:
        kernel: symmetric h of two arguments, vectorised (see the module).
        samples: array ``(n, ...)`` or a tuple of arrays that share the leading length n >= 2.
        atoms: the values that a sample takes, in the samples' structure, with leading length m.
        probabilities: ``(m,)``, their probabilities.

    >>> parts = hoeffding(lambda a, b: (a - b) ** 2 / 2, [1.0, 1.0, 0.0], [0.0, 1.0], [0.75, 0.25])
    >>> f"{parts.mean:.4f} + {parts.first:.4f} + {parts.second:.4f} = {parts.total:.4f}"
    '0.1875 + 0.2083 + -0.0625 = 0.3333'
    """
    sample, support = _sample("samples", samples, 2), _sample("atoms", atoms)
    weights = checked_probabilities("probabilities", probabilities, 1)
    if len(weights) != support.size:
        raise InputError(
            f"{len(weights)} probabilities for {support.size} atoms: there must be one per atom"
        )
    _symmetric(kernel, sample, 2)
    h_1_atoms = _projection(kernel, support, support, weights)
    h_1 = _projection(kernel, sample, support, weights)
    mean = np.tensordot(weights, h_1_atoms, axes=1)
    first = 2 * (h_1 - mean).mean(axis=0)
    # This uses the definition, not U - mean - first, so that the sum of the parts remains a test.
    second = np.zeros_like(first)
    for i, j in _subsets(sample, 2):
        value = _values(kernel, sample.take(i), sample.take(j))
        second = second + (value - h_1[i] - h_1[j] + mean).sum(axis=0)
    return Hoeffding(
        np.asarray(mean), np.asarray(first), np.asarray(second / math.comb(sample.size, 2))
    )


def covariance_variance_components(scores: ArrayLike, rewards: ArrayLike) -> VarianceComponents:
    """Return unbiased estimates of the variances behind :func:`covariance_ustatistic`, in O(n d).

    ζ₁ = Var h₁(X) = E h(X₁, X₂) h(X₁, X₃) - (E h)²
    ζ₂ = Var h(X₁, X₂) = E h(X₁, X₂)² - (E h)²
    Var U = 2/(n(n-1)) (2(n-2) ζ₁ + ζ₂)

    Each expectation is replaced by its own U-statistic, (E h)² by the mean of h(xᵢ, xⱼ) h(xₖ, xₗ)
    over all distinct i, j, k, l. So, unlike plug-in estimates, these **may be negative**: average
    them over samples before taking a root.

    With s and z centred in the sample, the kernel's row and pair sums are power sums:

    Σ_{j≠i} (hᵢⱼ - U) = n/2 (sᵢ zᵢ - 1/n Σ s z)
    Σ_{i≠j} (hᵢⱼ - U)² = ½ (n Σ s² z² + Σ s² Σ z²) - 1/(n-1) (Σ s z)²

    Args:
        scores: ``(..., n, d)``, n >= 4.
        rewards: ``(..., n)``, with the same leading axes.

    Returns:
        The three estimates, each ``(..., d)``: one per coordinate of the scores.

    >>> scores = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-1.0, 2.0]]
    >>> covariance_variance_components(scores, [1.0, 0.0, 0.0, 0.0]).variance
    array([0.11111111, 0.0625    ])
    """
    s, z = _centred(scores, rewards, 4)
    n = s.shape[-2]
    product = s * z
    total = product.sum(axis=-2)
    fourth = (product**2).sum(axis=-2)
    squares = (n * fourth + (s**2).sum(axis=-2) * (z**2).sum(axis=-2)) / 2
    squares -= total**2 / (n - 1)
    # Two passes: Σ (s z)² - (Σ s z)²/n would cancel if s z hardly varies.
    product -= total[..., None, :] / n
    row_squares = n**2 / 4 * (product**2).sum(axis=-2)
    # For the kernel minus U, Σ_{i≠j} kᵢⱼ² and Σᵢ (Σ_{j≠i} kᵢⱼ)² give the mean over each kind of tuple.
    square = squares / math.perm(n, 2)
    shared_one = (row_squares - squares) / math.perm(n, 3)
    # Since Σ_{i≠j} kᵢⱼ = 0, the sum over four different samples is minus the sum over tuples with a repeat.
    disjoint = (2 * squares - 4 * row_squares) / math.perm(n, 4)
    # Var U = E U² - (E h)², and U² vanishes for the centred kernel.
    return VarianceComponents(
        np.asarray(shared_one - disjoint), np.asarray(square - disjoint), np.asarray(-disjoint)
    )
