"""Exact results for every critic-free estimator with rewards 0 and 1 (count_advantages, best_baseline).

With such rewards the advantages of a group are a table: a₁(n) for a success and a₀(n) for a failure, n
the number of successes among G. At a prompt with pass rate p and m ~ Binomial(G-1, p) successes among the
others

    E ĝ = w(p) g,    w(p) = E δ(m),    δ(m) = a₁(m+1) - a₀(m).

So w is a Bernstein polynomial of degree G-1 with coefficients δ: the estimator climbs E Φ(V(X)) with
Φ' = w, and climbs J, without bias, if and only if δ = 1. Where δ = 1 the advantages are those of a
leave-one-out baseline b(m) = -a₀(m). E‖ĝ‖² is :func:`~ustat_pg.predictions.closed_forms.centred_moment`.

One output (s, z) moves the estimate by E[ĝ | s, z] - E ĝ = (α_z s - w g + (z-p) w'(p) g)/G, with
α₁ = E a₁(m+1) and α₀ = E a₀(m). The sum of these over the group is Hoeffding's first-order part of ĝ, of
squared norm

    (1/G) ( α₁² E‖s‖² z + α₀² E‖s‖² (1-z) - (w² - 2 w' ((1-p) α₁ + p α₀) - p (1-p) w'²) ‖g‖² )
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_banded

from ..display.shown import Shown
from ..execution.memory import slices
from ..moments.record import ContextMatrices, Known, Moments, takes_problems
from ..registry import parse, require_group
from ..rounding import DERIVED, GIVEN, SUM
from ..validation import (
    Array,
    InputError,
    field,
    finite_array,
    integer,
    number,
    positive,
    record,
    shares,
)
from .closed_forms import (
    Mean,
    Shares,
    best_amount,
    centred_moment,
    first_order,
    normal_equations,
    pair_noise,
    table_shares,
    table_weight,
)

MOST = 10**6
"""The largest group that has a table."""
_MOST_CHANCES = 2**25
"""The most probabilities, over all prompts and numbers of successes, that are in memory at a time."""
_AT_ONCE = 2**18
"""The number of probabilities that are computed at a time, so that they fit in a processor's cache."""


@record()
class CountTable(Shown):
    """The advantages in a group of G, by the number of successes in the group.

    Arguments:
        successes: a₁(0), ..., a₁(G), (G+1,); a₁(0) is not used.
        failures: a₀(0), ..., a₀(G), (G+1,); a₀(G) is not used.

    >>> rloo = count_table("rloo", 4)
    >>> rloo.unbiased, round(float(rloo.weight(0.3)), 12)
    (True, 1.0)
    """

    successes: Array = field(finite_array, ndim=1)
    failures: Array = field(finite_array, ndim=1)

    def __attrs_post_init__(self) -> None:
        if len(self.successes) != len(self.failures) or len(self.successes) < 2:
            raise InputError(
                f"the tables have {len(self.successes)} and {len(self.failures)} entries: both need "
                "one for each number of successes from 0 to G, G >= 1"
            )

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.successes) - 1

    @property
    def delta(self) -> Array:
        """δ(m) = a₁(m+1) - a₀(m), the gain of a success over a failure if m others succeed, (G,)."""
        return self.successes[1:] - self.failures[:-1]

    @property
    def baseline(self) -> Array:
        """b(k) = -a₀(k), the baseline if k others succeed and δ = 1, (G,)."""
        return -self.failures[:-1]

    @property
    def estimator(self) -> str:
        """The name of the table for estimators and engines."""
        numbers = [*self.successes[1:], *self.failures[:-1]]
        return "count-table:" + ",".join(repr(float(number)) for number in numbers)

    @property
    def unbiased(self) -> bool:
        """Whether the estimator is unbiased for the gradient of the expected reward: δ = 1."""
        return bool(np.allclose(self.delta, 1.0, rtol=0, atol=DERIVED))

    def weight(self, pass_rate: ArrayLike) -> Array:
        """w(p), the factor between g(x) and a prompt's mean gradient, with the shape of p."""
        mean = beside(self.group_size, shares("pass rate", pass_rate))
        weights: Array = table_weight(self, mean)[()]
        return weights

    def mean_advantages(self, pass_rates: ArrayLike) -> tuple[Array, Array]:
        """E a₁(m+1) and E a₀(m), the mean advantages of a success and of a failure; the shape of p."""
        return self.means(beside(self.group_size, shares("pass rate", pass_rates)))

    def means(self, mean: Mean) -> tuple[Array, Array]:
        """The same under another law of the successes beside an output."""
        return mean(1, 1, self.successes[1:]), mean(1, 0, self.failures[:-1])

    def scaled(self, factor: float) -> CountTable:
        """The advantages times a factor."""
        return CountTable(factor * self.successes, factor * self.failures)

    def clipped(self, limit: float) -> CountTable:
        """The advantages, clipped at ±limit; the limit is a positive number.

        >>> table = count_table("std-ddof1", 8)
        >>> for each in (table, table.clipped(0.2)):
        ...     print(round(float(each.weight(0.02) / each.weight(0.5)), 3))
        1.387
        0.57
        """
        most = positive("limit", limit)
        return CountTable(np.clip(self.successes, -most, most), np.clip(self.failures, -most, most))

    def less(self, other: CountTable) -> CountTable:
        """The difference of two tables of equal group size, which is the difference of their estimates on the
        same draws.

        >>> count_table("std", 3).less(count_table("grpo", 3).scaled(2**0.5)).delta.round(12)
        array([0., 0., 0.])
        """
        return CountTable(self.successes - other.successes, self.failures - other.failures)

    def second_moments(self, moments: Moments) -> Array:
        """E‖ĝ‖² of one prompt's group, (X,)."""
        known = moments.norm_reward, moments.fisher_trace, moments.gradient_sq
        return np.asarray(centred_moment(self._shares(moments.value), *known))

    def first_order(self, moments: Moments) -> Array:
        """E‖Σᵢ E[ĝ | output i] - E ĝ‖² of one prompt's group, Hoeffding's first-order part, (X,)."""
        known = moments.value, moments.norm_reward, moments.fisher_trace, moments.gradient_sq
        return np.asarray(first_order(self, beside(self.group_size, moments.value), *known))

    def second_moment_matrices(self, moments: Moments) -> Iterator[tuple[Array, ContextMatrices]]:
        """E ĝ ĝᵀ of one prompt's group, (d, d), and the context's matrices, one context at a time."""
        shares = np.broadcast_arrays(*self._shares(moments.value))
        for *each, value, context in zip(*shares, moments.value, moments.matrices(), strict=True):
            reward = context.advantage + value * context.fisher
            outer = np.outer(context.gradient, context.gradient)
            yield centred_moment(Shares(*each), reward, context.fisher, outer), context

    def _shares(self, pass_rates: Array) -> Shares:
        return table_shares(self, beside(self.group_size, pass_rates))


def binomial(trials: int, chance: ArrayLike) -> Array:
    """P(m) of the number of successes, (..., trials + 1), from the ratios of neighbours, starting at the
    mode.

    Each of the k factors from the mode to m has at most two rounding errors, and k is a few deviations if
    P(m) matters: at a million trials the error is that of the last digits of p.
    """
    p = np.clip(np.asarray(chance, dtype=np.float64), 0.0, 1.0)
    if (trials + 1) * p.size > _MOST_CHANCES:
        raise InputError(
            f"groups of {trials + 1} at {p.size} prompts are too many: a table adds up at most "
            f"{_MOST_CHANCES:,} chances"
        )
    m = np.arange(trials + 1)
    chances = np.empty((p.size, trials + 1))
    for some in slices(p.size, _AT_ONCE / (trials + 1)):
        of = p.reshape(-1, 1)[some]
        mode = np.minimum(np.floor((trials + 1) * of), trials)
        # Only next to the mode: elsewhere they may not be numbers.
        with np.errstate(divide="ignore", invalid="ignore"):
            odds, rise = of / (1 - of), (trials + 1 - m) / m
            up = np.where(m > mode, rise * odds, 1.0)
            down = np.where(m < mode, 1 / (np.roll(rise, -1) * odds), 1.0)
        shares = np.cumprod(up, axis=1) * np.cumprod(down[:, ::-1], axis=1)[:, ::-1]
        chances[some] = shares / shares.sum(axis=1, keepdims=True)
    return chances.reshape(*p.shape, trials + 1)


def beside(size: int, pass_rates: Array) -> Mean:
    """The mean over the successes beside one or two outputs of a group, (X,)."""
    alone = binomial(size - 1, pass_rates)
    return lambda own, won, values: np.asarray(alone @ (values if own == 1 else _one_less(values)))


def _one_less(values: Array) -> Array:
    """f̄ with E f̄(m) = E f(l), for l successes among n-1 trials and m among n: it leaves out a random trial.

    Arguments:
        values: f(0), ..., f(n-1), (n,).
    """
    share = np.arange(len(values) + 1) / len(values)
    return (1 - share) * np.append(values, 0.0) + share * np.append(0.0, values)


def is_binary(moments: Moments) -> bool:
    """Whether all rewards are 0 or 1: they are in that range and have the variance p(1-p)."""
    value = moments.value
    spread = np.abs(moments.reward_variance - value * (1 - value))
    low, high = moments.reward_range
    return bool(low >= 0 and high <= 1 and (spread <= GIVEN).all())


def require_binary(moments: Moments, what: str) -> None:
    """Raise an error if rewards are not 0 or 1."""
    if not is_binary(moments):
        low, high = moments.reward_range
        raise InputError(
            f"{what} has a closed form for rewards that are 0 or 1: these lie in [{low:g}, {high:g}] "
            "and are not; call ustat_pg.engines.enumerate_mse"
        )


def centred(estimator: str, moments: Moments) -> str:
    """The estimator's name, with the problem's mean reward added if shrinkage has no centre."""
    if isinstance(estimator, str) and re.fullmatch("shrinkage:[^,]+", estimator):
        return f"{estimator},{float(moments.context_probs @ moments.value)!r}"
    return estimator


@takes_problems
def frac_reward_zero_std(moments: Moments, group_size: int) -> float:
    """The share of groups whose rewards are all equal, E[Vᴳ + (1-V)ᴳ], for rewards 0 and 1.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> frac_reward_zero_std(coin.moments(), 2)
    0.5
    """
    require_binary(moments, "the share of silent groups")
    size, value = integer("group size", group_size), moments.value
    return min(float(moments.context_probs @ (value**size + (1 - value) ** size)), 1.0)


@takes_problems
def mean_gradient(
    moments: Moments, estimator: str, group_size: int, *, dynamic_sampling: bool = False
) -> Array:
    """The mean gradient of a named estimator, E ĝ = E w(V(X)) g(X), (d,) (count_advantages).

    Dynamic sampling drops groups of equal rewards and draws other prompts in their place. If silent groups
    have advantages 0, it only divides the mean by the share of kept groups.

    Arguments:
        moments: moments of the problem, with its prompts' gradients; rewards 0 and 1.
        estimator: name of an estimator that is a table by counts.
        group_size: G.
        dynamic_sampling: whether silent groups are replaced.

    Raises:
        InputError: moments have no gradients, rewards are not 0 or 1, or the name is unknown; with dynamic
            sampling also if silent groups have advantages other than 0, or if all groups are silent.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> mean_gradient(coin.moments(), "std", 2)
    array([ 0.25, -0.25])
    >>> mean_gradient(coin.moments(), "std", 2, dynamic_sampling=True)
    array([ 0.5, -0.5])
    """
    require_binary(moments, estimator)
    table = count_table(estimator, group_size, moments)
    mean = moments.weighted_gradient(table.weight(moments.value))
    if not dynamic_sampling:
        return mean
    if table.successes[-1] != 0 or table.failures[0] != 0:
        raise InputError(
            f"groups of equal rewards are not silent with {estimator}: their advantages are not 0"
        )
    kept = 1 - frac_reward_zero_std(moments, group_size)
    if kept < SUM:
        raise InputError("every group is silent, so dynamic sampling would keep no group")
    return mean / kept


def _vanilla(size: int) -> tuple[Any, Any]:
    return np.ones(size + 1), np.zeros(size + 1)


def _of_baseline(baseline: Array) -> tuple[Any, Any]:
    """A leave-one-out baseline b(k) for k successes among the others, (G,)."""
    return np.append(0.0, 1 - baseline), np.append(-baseline, 0.0)


def _others(size: int) -> Array:
    return np.arange(size, dtype=np.float64)


def _grpo(size: int) -> tuple[Any, Any]:
    return _of_baseline(_others(size) / (size - 1))


def _group_mean(size: int) -> tuple[Any, Any]:
    share = np.arange(size + 1) / size
    return 1 - share, -share


def _bayes(size: int, successes: float, failures: float) -> tuple[Any, Any]:
    a, b = positive("successes", successes), positive("failures", failures)
    return _of_baseline((_others(size) + a) / (size - 1 + a + b))


def _shrinkage(size: int, amount: float, mean_value: float) -> tuple[Any, Any]:
    share = number("amount of shrinkage", amount, minimum=0.0, maximum=1.0)
    mean = number("mean value", mean_value)
    return _of_baseline((1 - share) * _others(size) / (size - 1) + share * mean)


def _count_table(size: int, values: tuple[float, ...]) -> tuple[Any, Any]:
    if len(values) != 2 * size:
        raise InputError(f"the table has {len(values)} values: a group of {size} needs {2 * size}")
    return np.append(0.0, values[:size]), np.append(values[size:], 0.0)


def _loo_table(size: int, values: tuple[float, ...]) -> tuple[Any, Any]:
    if len(values) != size:
        raise InputError(f"the table has {len(values)} values: a group of {size} needs as many")
    return _of_baseline(np.array(values, dtype=np.float64))


def _std(size: int) -> tuple[Any, Any]:
    n = np.arange(size + 1, dtype=np.float64)
    mixed = (n > 0) & (n < size)
    odds = np.where(mixed, (size - n) / np.maximum(n, 1), 0.0)
    return np.sqrt(odds), -np.sqrt(np.where(mixed, 1 / np.where(mixed, odds, 1.0), 0.0))


def _std_ddof1(size: int) -> tuple[Any, Any]:
    won, lost = _std(size)
    return sqrt((size - 1) / size) * won, sqrt((size - 1) / size) * lost


def _others_std(size: int) -> tuple[Any, Any]:
    k = _others(size)  # successes among the G-1 others
    share = k / (size - 1)
    variance = share * (1 - share) * (size - 1) / max(size - 2, 1)
    divisor = np.where((k > 0) & (k < size - 1), np.sqrt(variance), 1.0)
    return np.append(0.0, (1 - share) / divisor), np.append(-share / divisor, 0.0)


def _maxrl(size: int) -> tuple[Any, Any]:
    n = np.arange(size + 1, dtype=np.float64)
    return size / np.maximum(n, 1) - 1, np.where(n > 0, -1.0, 0.0)


def _found(size: int, subset: int) -> Array:
    """The chance that a subset of the G-1 others contains one of their m successes, m = 0, ..., G-1."""
    left = size - 1.0 - np.arange(size - 1)
    return 1 - np.append(1.0, np.cumprod(np.maximum(left - subset, 0) / left))


def _require_attempts(name: str, size: int, k: int, least: int = 1) -> None:
    if integer("k", k, least) > size:
        raise InputError(f"{name} needs a group of at least k = {k}: group size is {size}")


def _pass_at_k(size: int, k: int) -> tuple[Any, Any]:
    _require_attempts("pass-at-k", size, k)
    without, beside = _found(size, min(k, size - 1)), _found(size, k - 1)
    return np.append(0.0, k * (1 - without)), np.append(k * (beside - without), 0.0)


def _gain_at_k(size: int, k: int) -> tuple[Any, Any]:
    _require_attempts("gain-at-k", size, k, 2)
    return np.append(0.0, k * (1 - _found(size, k - 1))), np.zeros(size + 1)


TABLES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "vanilla": _vanilla,
    "grpo": _grpo,
    "group-mean": _group_mean,
    "shrinkage": _shrinkage,
    "bayes": _bayes,
    "count-table": _count_table,
    "loo-table": _loo_table,
    "std": _std,
    "std-ddof1": _std_ddof1,
    "others-std": _others_std,
    "maxrl": _maxrl,
    "pass-at-k": _pass_at_k,
    "gain-at-k": _gain_at_k,
}
"""The tables of named estimators, as formulas of counts that are independent of the estimators' code."""


def count_table(estimator: str, group_size: int, moments: Known | None = None) -> CountTable:
    """The advantages of a named estimator by the number of successes in the group.

    Arguments:
        estimator: name of a table; numbers follow after a colon.
        group_size: G.
        moments: the problem, or its moments; only ``best`` needs them.

    >>> count_table("std", 4).successes.round(4)
    array([0.    , 1.7321, 1.    , 0.5774, 0.    ])
    """
    known, numbers = parse(estimator)
    if not known.by_count:
        raise InputError(f"{known.name} is not a table by the number of successes")
    require_group(estimator, group_size)
    integer("group size", group_size, maximum=MOST)
    if "best_table" in known.needs:
        if moments is None:
            raise InputError(
                f"{known.name} is the best table of a problem: give the problem's moments"
            )
        return best_table(moments, group_size)
    return CountTable(*TABLES[known.name](group_size, **numbers))


@takes_problems
def best_table(moments: Moments, group_size: int, delta: ArrayLike = 1.0) -> CountTable:
    """The table with the least error among all tables with the same mean gradient (best_baseline).

    Given δ, the MSE is a quadratic form in the free a₀(0), ..., a₀(G-1), with a tridiagonal matrix: the
    diagonal E[P(m) E‖s‖²], plus (G-1) E[‖g‖² P'(l)] times the stencil of differences. At δ = 1 it is the best
    leave-one-out baseline b = -a₀. It is unbiased if it does not come from the group it is used on: take the
    moments of other prompts or of earlier steps.

    Arguments:
        moments: moments of the problem, or of a pool; rewards 0 and 1.
        group_size: G.
        delta: δ(0), ..., δ(G-1), or one number for all: 1 for the gradient of the expected reward.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> best_table(coin.moments(), 3).baseline
    array([0.5, 0.5, 0.5])
    """
    require_binary(moments, "the best table")
    size = integer("group size", group_size, maximum=MOST)
    gains = finite_array("delta", delta)
    if gains.ndim > 1 or (gains.ndim == 1 and len(gains) != size):
        raise InputError(f"delta has shape {gains.shape}: a group of {size} needs ({size},)")
    gains = np.broadcast_to(gains, size)
    probs, reward = moments.context_probs, moments.norm_reward
    alone = binomial(size - 1, moments.value)
    norms, rewards = (probs * moments.fisher_trace) @ alone, (probs * reward) @ alone
    pairs = np.zeros(size - 1)
    if size > 1:
        pairs = (size - 1) * ((probs * moments.gradient_sq) @ binomial(size - 2, moments.value))
    diagonal, right = normal_equations(gains, norms, rewards, pairs)
    off = np.append(0.0, -pairs)
    # No prompt can have this count, so any entry is equally good.
    never = diagonal <= 0
    diagonal[never] = 1.0
    lost = solve_banded((1, 1), np.stack([off, diagonal, np.roll(off, -1)]), right)
    return CountTable(np.append(0.0, gains + lost), np.append(lost, 0.0))


@takes_problems
def best_shrinkage(moments: Moments, group_size: int, mean_value: float | None = None) -> float:
    """The amount of shrinkage λ* with the least error, for any rewards (best_baseline).

    λ* = (c₃/(G-1) + χ)/(c₃/(G-1) + κ), with c₃ = E[σ² tr F + ‖g‖²], δ = μ - V, κ = E δ² tr F and
    χ = E δ E[a ‖s‖²]; clipped to [0, 1].

    Arguments:
        moments: moments of the problem, or of a pool.
        group_size: G >= 2.
        mean_value: μ, the value towards which the leave-one-out mean is shrunk (default: E V(X)).

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> best_shrinkage(coin.moments(), 4)
    1.0
    """
    size, probs = integer("group size", group_size, 2), moments.context_probs
    centre = probs @ moments.value if mean_value is None else number("mean value", mean_value)
    off = centre - moments.value
    noise = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    pair, cross, square = (
        float(probs @ each)
        for each in (
            noise / (size - 1),
            off * moments.norm_advantage,
            off**2 * moments.fisher_trace,
        )
    )
    if pair + square <= 0:
        return 1.0
    return float(np.clip(best_amount(pair, cross, square), 0.0, 1.0))
