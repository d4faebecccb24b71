"""A scored pool's results for every group size: error curves of estimators, their order, noise over signal.

Every conditional MSE of Theorem 2 (mse) is linear in moments of one prompt,

    MSE_b(G)    = (E[‖s‖² (z-b)²] - ‖g‖²) / G                      vanilla, oracle, any constant
    MSE_grpo(G) = (τ - ‖g‖²) / G + (φ + ‖g‖²) / (G (G-1)),

with τ = E[‖s‖² a²], φ = σ² tr F. Each moment is unbiased for any number of rollouts, and so is the whole
curve; moments and errors are those of :mod:`ustat_pg.llm.pool.moments`. Advantages by the number of successes
(std, MaxRL, the best table), weighted baselines and the best constant are not linear; they are in
:mod:`ustat_pg.llm.pool.tables`. Ratios of unbiased estimates are biased by a term of order 1/P, where P is
the number of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ...catalogue.choice import Direction, Ratio
from ...display.numbers import readable
from ...display.shown import Shown, plain
from ...inference import (
    FEW,
    LIKELY,
    Interval,
    Means,
    alignment,
    beside,
    log_ratio,
    means,
    norm_interval,
    pairs,
    ratio,
)
from ...inference.estimate import Estimate
from ...rounding import DERIVED
from ...validation import Array, InputError, integer, one_of
from .constants import ConstantsEstimate, constants, hidden_gradients, hidden_prompts
from .moments import (
    GroupMoments,
    PromptMoments,
    frac_reward_zero_std,
    gradients,
    over_prompts,
    prompt_moments,
    reward_tail,
    share_interval,
    sizes_of,
)
from .printing import ends, finite
from .scored import ScoredPool
from .tables import (
    OF_POOLS,
    ONE_MORE,
    TABLES,
    WEIGHTED,
    binary,
    group_moments,
    names_of,
    raw_group_moments,
    too_large,
)

__all__ = [
    "OF_POOLS",
    "TABLES",
    "WEIGHTED",
    "ConstantsEstimate",
    "PromptMoments",
    "constants",
    "curves",
    "frac_reward_zero_std",
    "noise_to_signal",
    "oracle_ratio",
    "ordering",
    "prompt_moments",
    "summary",
]


_MOST = 0.5
"""A prompt is named if its share of E‖g(X)‖² is larger than this."""

_PAPER = ("vanilla", "grpo", "oracle")
"""The order of estimators in the paper's reading of Figure 4, from the largest error."""


def curves(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    estimators: Sequence[str] = ("vanilla", "grpo", "oracle", "minimum-variance"),
) -> pd.DataFrame:
    """The gradient MSE of every estimator at every group size, with 95% intervals.

    It is the mean over prompts of the error of one group's gradient given the prompt (Figure 4, times the
    number of prompts).

    Arguments:
        pool: a pool with N rollouts per prompt.
        group_sizes: G, at least 1; at least 2 for grpo; from 2 to N for weighted baselines; at most N for
            tables by counts, and at most N-1 for biased ones.
        estimators: names in :data:`OF_POOLS`, and tables by counts, such as :data:`TABLES`. The error of a
            biased estimator is its distance from g, including the bias; :func:`noise_to_signal` measures it
            in its own units.

    Returns:
        a row for each estimator and group size: estimator, group_size, mse, low, high, se, biased, and
        own_se, the part of se from random groups (0 if all groups are used).
        Estimates are unbiased if ``biased`` is false, so they may be negative. Intervals treat the prompts as
        a sample of all prompts; for the fixed set itself they are wider than needed.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> curves(pool, [2, 4], ["grpo"])[["estimator", "group_size", "mse"]].round(4).values.tolist()
    [['grpo', 2, 0.25], ['grpo', 4, 0.0903]]
    """
    names, sizes = names_of(estimators), sizes_of(group_sizes)
    moments = prompt_moments(pool)
    groups = [group for row in group_moments(pool, moments, names, sizes) for group in row]
    averages = beside(*(_error(pool, moments, group) for group in groups))
    low, high = averages.interval()
    if hidden_prompts(pool) is not None:
        high[:] = math.inf
    return pd.DataFrame(
        {
            "estimator": np.repeat(names, len(sizes)),
            "group_size": np.tile(sizes, len(names)),
            "mse": averages.full,
            "low": low,
            "high": high,
            "se": averages.se,
            "biased": np.repeat([name == "minimum-variance" for name in names], len(sizes)),
            "own_se": [
                0.0 if group.own is None else np.linalg.norm(group.own) / pool.size
                for group in groups
            ],
        }
    )


def _error(pool: ScoredPool, moments: PromptMoments, group: GroupMoments) -> Means:
    """The error E‖ĝ - g‖² given the prompt."""
    if np.isnan(group.cross).any():
        raise too_large(pool.rollouts, pool, ONE_MORE)
    error = group.second - 2 * group.cross + moments.gradient_sq
    return over_prompts(pool, error[:, None])


def ordering(pool: ScoredPool, group_size: int, estimators: Sequence[str] = _PAPER) -> pd.DataFrame:
    """Which of several unbiased estimators has the larger MSE at a group size, by paired differences.

    The spread between prompts cancels, so the answer is the same in every design. For biased tables it would
    not be the same, because their bias does not fall with the batch size.

    Returns:
        a row for each pair: first, second, difference (mean error of the first minus the second, given the
        prompt), low, high, se, larger (the name, tie or open), paper (the larger one in the paper's
        reading vanilla > grpo > oracle, or none) and reading (holds, fails, tie, open or none).

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> ordering(pool, 4)[["first", "second", "larger", "paper"]].values.tolist()[0]
    ['vanilla', 'grpo', 'open', 'vanilla']
    """
    names = names_of(estimators)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"estimators are {names}: at least two different ones are needed")
    rows = group_moments(pool, prompt_moments(pool), names, [integer("group size", group_size)])
    errors = {}
    for name, (group,) in zip(names, rows, strict=True):
        if (group.factor != 1).any():
            raise InputError(
                f"{name} is biased, and its error falls with the batch size to that bias, so the order "
                "depends on the batch size: compare its noise over its signal (noise_to_signal)"
            )
        # ‖g‖² cancels in the differences.
        errors[name] = group.second - 2 * group.cross
    both = list(combinations(names, 2))
    apart = np.stack([errors[first] - errors[second] for first, second in both], axis=1)
    averages = over_prompts(pool, apart)
    frame = pd.DataFrame(both, columns=["first", "second"])
    frame["difference"] = averages.full
    frame["low"], frame["high"] = averages.interval()
    if hidden_gradients(pool) is not None:
        # grpo minus oracle is (φ + ‖g‖²)/(G (G-1)).
        for first, second, end, far in (
            ("grpo", "oracle", "high", math.inf),
            ("oracle", "grpo", "low", -math.inf),
        ):
            frame.loc[(frame["first"] == first) & (frame["second"] == second), end] = far
    frame["se"] = averages.se
    frame["larger"] = np.select(
        [(frame["difference"] == 0) & (frame["se"] == 0), frame["low"] > 0, frame["high"] < 0],
        ["tie", frame["first"], frame["second"]],
        "open",
    )
    # The one of two estimators that comes first in the paper's reading, if the paper orders them.
    frame["paper"] = [min(two, key=_PAPER.index) if {*two} <= {*_PAPER} else "none" for two in both]
    frame["reading"] = np.select(
        [
            frame["paper"] == "none",
            frame["larger"].isin(["open", "tie"]),
            frame["larger"] == frame["paper"],
        ],
        ["none", frame["larger"], "holds"],
        "fails",
    )
    return frame


@dataclass(frozen=True)
class Dominant(Shown):
    """A prompt that contributes most of E‖g(X)‖², and the constants of all other prompts.

    Arguments:
        prompt: its name; in a log, the name of its first group.
        share: its share of the sum of ‖g(x)‖², with negative estimates set to 0.
        others: the constants without this prompt.
    """

    prompt: str
    share: float
    others: ConstantsEstimate

    def __str__(self) -> str:
        star = self.others.g_star
        value = readable(star.value) if math.isfinite(star.value) else "not known"
        return (
            f"One prompt, {self.prompt!r}, contributes {self.share:.0%} of E‖g(X)‖², which determines c1 and "
            f"G*. For the others alone G* is {value} (95%: {ends(*star.interval)})."
        )

    def to_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON."""
        return {
            "prompt": self.prompt,
            "share": self.share,
            "g_star": finite(self.others.g_star.value),
            "g_star_interval": plain(self.others.g_star.interval),
        }


def dominant(pool: ScoredPool) -> Dominant | None:
    """The prompt that contributes more than half of E‖g(X)‖²; None if none does, or for few prompts."""
    if pool.distinct <= FEW:
        return None
    parts = np.maximum(pool.by_prompt(prompt_moments(pool).gradient_sq), 0.0)
    largest = int(parts.argmax())
    share = float(parts[largest] / parts.sum()) if parts.any() else 0.0
    if share <= _MOST:
        return None
    own = pool.places == largest
    others = pool.select_prompts(np.flatnonzero(~own).tolist())
    return Dominant(pool.prompts[int(own.argmax())], share, constants(others))


def oracle_ratio(pool: ScoredPool, group_sizes: Sequence[int]) -> pd.DataFrame:
    """The MSE of grpo divided by that of the oracle at one prompt (Corollary 4, oracle), from moments.

    1 + (φ + ‖g‖²) / ((G-1)(τ - ‖g‖²)): a ratio of unbiased estimates, so biased by a term of order 1/P.
    A row for each group size: group_size, predicted, low, high.
    """
    sizes, moments = sizes_of(group_sizes), prompt_moments(pool)
    both = group_moments(pool, moments, ["grpo", "oracle"], sizes)
    rows, seen = [], hidden_gradients(pool) is None
    for size, top, below in zip(sizes, *both, strict=True):
        pair = beside(_error(pool, moments, top), _error(pool, moments, below))
        value, low, high = _known(ratio(pair))
        rows.append((size, value, low, high if seen else math.inf))
    return pd.DataFrame(rows, columns=["group_size", "predicted", "low", "high"])


def noise_to_signal(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    estimators: Sequence[str] = ("grpo", "std", "maxrl", "bayes:1,1", "oracle"),
    *,
    aggregation: str = "sequence-sum",
) -> pd.DataFrame:
    """The noise over signal tr Cov ĝ / ‖E ĝ‖² of every estimator at every group size; a rescaled learning
    rate does not change it.

    It is the error about the estimator's own mean, in units of that mean. If advantages are divided by the
    standard deviation, or by the mean as in MaxRL, ĝ has another length and direction than g, and its MSE for
    g is not informative. tr Cov ĝ and ‖E ĝ‖² are unbiased, from different prompts and groups
    (:func:`ustat_pg.llm.pool.tables.table_moments`); the ratio is biased by a term of order 1/P.

    Prompts are drawn independently for each step: the noise is E‖ĝ‖² - ‖E ĝ‖² of one group's ĝ; divide it by
        the number of prompts of a step.

    Arguments:
        pool: a pool of at least two prompts.
        group_sizes, estimators: as for :func:`curves`; all others are compared with the first.
        aggregation: sequence-sum, where s is the sum over a completion's tokens; or sequence-mean, s/|y| as
            in TRL's ``loss_type="grpo"``, for tables by counts. In a pool weighted by token
            (:mod:`ustat_pg.llm.pool.scored`) both apply to the weighted scores, for tables by counts.

    Returns:
        a row for each estimator and group size: estimator, group_size; noise, signal, noise_se, signal_se;
        ratio, low, high (95% interval); relative, relative_low, relative_high, the ratio divided by the first
        estimator's at that group size, by paired differences of logarithms. Ratios are NaN if the signal (for
        relative, the noise) is not positive. Ends are infinite, or 0, if the signal may be 0; for relative,
        if an 83% interval of either signal contains 0.

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
    ...     [[[1.0], [-1.0], [2.0], [0.0]], [[2.0], [-1.0], [1.0], [-1.0]]],
    ... )
    >>> frame = noise_to_signal(pool, [3], ["grpo", "dr-grpo", "std"])
    >>> frame[["estimator", "noise", "signal", "ratio"]].round(4).values.tolist()
    [['grpo', 0.0972, 0.3889, 0.25], ['group-mean', 0.0432, 0.1728, 0.25], ['std', 0.1944, 0.7778, 0.25]]
    """
    names, sizes = names_of(estimators), sizes_of(group_sizes)
    one_of("aggregation", aggregation, ("sequence-sum", "sequence-mean"))
    by_length = aggregation == "sequence-mean"
    gradients(pool)
    rows, first = [], dict[int, Noise]()
    if pool.weighted or by_length:
        groups = raw_group_moments(pool, names, sizes, by_length)
    else:
        groups = group_moments(pool, prompt_moments(pool), names, sizes)
    for name, row in zip(names, groups, strict=True):
        for size, group in zip(sizes, row, strict=True):
            noise = _noise(pool, group)
            both, relative = noise.both, _over(noise, first.setdefault(size, noise))
            known = *_known(ratio(both, noise.signal)), *relative
            rows.append((name, size, *both.full, *both.se, *known))
    columns = ["estimator", "group_size", "noise", "signal", "noise_se", "signal_se", "ratio"]
    columns += ["low", "high", "relative", "relative_low", "relative_high"]
    return pd.DataFrame(rows, columns=columns)


def compared(pool: ScoredPool, pairs: Sequence[tuple[str, int]]) -> list[Ratio]:
    """Noise over signal times G of estimators at group sizes, and its ratio to the first, with intervals."""
    gradients(pool)
    moments, noises = prompt_moments(pool), dict[tuple[str, int], Noise]()
    for name, size in pairs:
        try:
            ((group,),) = group_moments(pool, moments, [name], [size])
        except InputError:
            # The noise of the options in use must be known; a candidate with unknown noise is not compared.
            if not noises:
                raise
            continue
        noises[name, size] = _noise(pool, group, size)
    first, missing = noises[pairs[0]], (np.nan,) * 4

    def row(noise: Noise) -> Ratio:
        return _known(ratio(noise.both))[0], *_over(noise, first)

    return [row(noises[pair]) if pair in noises else missing for pair in pairs]


def direction(pool: ScoredPool, estimator: str, size: int) -> Direction:
    """The bias of an estimator at a group size: E ĝ compared with g, both averaged over prompts.

    ⟨E ĝ, E g⟩, ‖E ĝ‖² and ‖E g‖² are means over pairs of different prompts, so groups of all rollouts of a
    prompt are allowed; the cosine is biased by a term of order 1/P.
    """
    ((group,),) = group_moments(pool, prompt_moments(pool), [estimator], [size])
    mean, gradient = _vectors(pool, group), pool.by_prompt(gradients(pool))
    if not all(norm_interval(each, pool.looks)[0] > 0 for each in (mean, gradient)):
        return Direction(None, None, -1.0, 1.0)
    both = (mean, mean), (mean, gradient), (gradient, gradient)
    three = beside(*(pairs(*two, looks=pool.looks) for two in both))
    scale, cosine = alignment(three, True, True)
    return Direction(scale.value, cosine.value, *cosine.interval)


@dataclass(frozen=True)
class Noise:
    """tr Cov ĝ times a constant, and ‖E ĝ‖² with its interval, and whether the latter is likely positive."""

    both: Means
    signal: Interval
    likely: bool


def _noise(pool: ScoredPool, group: GroupMoments, times: float = 1.0) -> Noise:
    """The noise of one group's ĝ; ‖E ĝ‖² comes from pairs of different prompts."""
    vectors = _vectors(pool, group)
    square = over_prompts(pool, group.second[:, None])
    both = beside(square, pairs(vectors, looks=pool.looks)).apply(
        lambda both: np.stack([times * (both[..., 0] - both[..., 1]), both[..., 1]], axis=-1)
    )
    shown = hidden_gradients(pool) is None
    likely = shown and norm_interval(vectors, pool.looks * LIKELY)[0] > 0
    return Noise(both, norm_interval(vectors, pool.looks), likely)


def _vectors(pool: ScoredPool, group: GroupMoments) -> Array:
    """Unbiased sketches of E ĝ for each different prompt, (D, k)."""
    if group.vectors is not None:
        return pool.by_prompt(group.vectors)
    return pool.by_prompt(gradients(pool) * group.factor[:, None])


def _known(found: Estimate) -> tuple[float, float, float]:
    """A ratio and its interval; NaN if the denominator is not positive."""
    return found.value if math.isfinite(found.value) else math.nan, *found.interval


def _over(one: Noise, other: Noise) -> tuple[float, float, float]:
    """The ratio of two noises over signal on the same prompts. Its ends are known if both signals are likely
    positive, because their errors are nearly equal and cancel.
    """
    found = log_ratio(one.both, other.both)
    # If one is a multiple of the other, the ratio is known for any signal.
    known = (one.likely and other.likely) or found.low == found.high
    return found.value, *(found.interval if known else (0.0, math.inf))


def summary(pool: ScoredPool) -> pd.DataFrame:
    """A summary of the pool in a few numbers, with 95% intervals.

    pass_rate E V; reward_variance E σ²; fisher_trace E tr F; gradient_sq E‖g(X)‖²; correlation of ‖s‖² and z
    within prompts, E cov / √(E var E var); optimal_baseline E[‖s‖² z]/E tr F, the best constant for all
    prompts; best_less_value E[‖s‖² a]/E tr F, the best constant minus the weighted value (0 under Assumption
    2); mixed, the share of prompts with unequal rewards; oracle_beats_vanilla, the share of the mixed prompts
    for which an unbiased estimate says so (sampling errors pull it towards 1/2).
    """
    moments, norms, count = prompt_moments(pool), pool.squared_norms, pool.rollouts
    apart = norms - norms.mean(axis=1, keepdims=True)
    apart = np.where(np.abs(apart) > DERIVED * norms, apart, 0.0)
    gain = moments.norm_squared_reward - moments.norm_squared_advantage
    mixed = np.ptp(pool.rewards, axis=1) > 0
    columns = np.column_stack(
        [
            moments.value,
            moments.reward_variance,
            moments.fisher_trace,
            moments.gradient_sq,
            moments.norm_reward,
            mixed & (gain > DERIVED * np.abs(moments.norm_squared_reward)),
            mixed,
            moments.norm_advantage,
            (apart**2).sum(axis=1) / (count - 1),
        ]
    )

    def quantities(averages: Array) -> Array:
        parts = np.moveaxis(averages, -1, 0)
        value, variance, trace, gradient, reward, better, varied, product, spread = parts
        width = np.sqrt(np.maximum(spread * variance, 0.0))
        wide, moving = width > 0, trace > 0
        correlation = np.where(wide, product / np.where(wide, width, 1.0), np.nan)
        below = np.where(moving, trace, 1.0)
        best, gap = np.where(moving, reward / below, value), np.where(moving, product / below, 0.0)
        share = np.where(varied > 0, better / np.where(varied > 0, varied, 1.0), np.nan)
        columns = [value, variance, trace, gradient, correlation, best, gap, varied, share]
        return np.stack(columns, axis=-1)

    biased = {"correlation", "optimal_baseline", "best_less_value", "oracle_beats_vanilla"}
    names = ["pass_rate", "reward_variance", "fisher_trace", "gradient_sq", "correlation"]
    names += ["optimal_baseline", "best_less_value", "mixed", "oracle_beats_vanilla"]
    whole = {"mixed", "oracle_beats_vanilla"} | ({"pass_rate"} if binary(pool) else set())
    # These contain squares of rewards, and products of two rewards.
    parts = {"reward_variance": 1.0, "gradient_sq": 0.5}
    tail = reward_tail(pool.rewards) * np.array([parts.get(name, 0.0) for name in names])
    averages = means(pool.by_prompt(columns), pool.looks).apply(quantities, tail)
    low, high = averages.interval()
    shares = share_interval(averages)
    if hidden_gradients(pool) is not None or hidden_prompts(pool) is not None:
        high[names.index("gradient_sq")] = math.inf
    for place in map(names.index, whole):
        low[place], high[place] = shares[0][place], shares[1][place]
    return pd.DataFrame(
        {
            "name": names,
            "value": averages.full,
            "low": low,
            "high": high,
            "se": averages.se,
            "biased": [name in biased for name in names],
        }
    )
