"""What a scored pool says about every group size: error curves of baselines, their order, noise over signal.

Every conditional MSE of Theorem 2 (mse) is linear in moments of one prompt,

    MSE_b(G)    = (E[‖s‖² (z-b)²] - ‖g‖²) / G                      vanilla, oracle, any constant
    MSE_grpo(G) = (τ - ‖g‖²) / G + (φ + ‖g‖²) / (G (G-1)),

with τ = E[‖s‖² a²], φ = σ² tr F. Each moment is a mean over tuples of *different* rollouts, a
U-statistic of K_ij = ⟨s_i, s_j⟩ and z, so each is unbiased however few rollouts there are, and so is
the whole curve. What is not linear: advantages that go by the number of successes (std, MaxRL, the best
table), weighted baselines and the best constant, all in :mod:`ustat_pg.llm.tables`.
:mod:`ustat_pg.llm.moments` puts prompts together. Ratios of unbiased estimates are biased by a term of
order 1/P, P the number of prompts.

Errors are those of a jackknife that deletes a prompt; they hold the noise of rollouts and of random groups
too, since both are drawn anew for each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError, integer
from .constants import ConstantsEstimate, constants, ratio_interval
from .moments import (
    DESIGNS,
    Batches,
    Means,
    PromptMoments,
    beside,
    leave_one_out,
    means,
    prompt_moments,
    share_interval,
    sizes_of,
    zero_signal,
)
from .pool import ScoredPool
from .tables import (
    BASELINES,
    TABLES,
    WEIGHTED,
    group_errors,
    group_moments,
    names_of,
    table_moments,
)

__all__ = [
    "BASELINES",
    "DESIGNS",
    "TABLES",
    "WEIGHTED",
    "ConstantsEstimate",
    "PromptMoments",
    "constants",
    "curves",
    "group_errors",
    "noise_to_signal",
    "oracle_ratio",
    "ordering",
    "prompt_moments",
    "prompt_table",
    "summary",
    "table_moments",
    "zero_signal",
]

_PAPER = ("vanilla", "grpo", "oracle")
"""The paper's reading of Figure 4, the largest error first."""


def curves(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("vanilla", "grpo", "oracle", "minimum-variance"),
    *,
    design: str = "prompt",
    batch_size: int = 1,
    constant: ArrayLike | None = None,
) -> pd.DataFrame:
    """The gradient MSE of every baseline at every group size, with 95% intervals.

    Arguments:
        pool: of N rollouts a prompt.
        group_sizes: G, at least 1; 2 for grpo; from 2 to N for weighted baselines; to N for tables by
            counts, to N-1 for biased ones.
        baselines: of :data:`BASELINES`, constant, and tables by counts, such as :data:`TABLES`. The error
            of a biased one is from g, its bias included; in its own units: :func:`noise_to_signal`.
        design: prompt, the mean over prompts of the error given the prompt; fixed, that over P, the
            error of the mean gradient of these P prompts (Figure 4); iid, B prompts drawn anew, so
            that the spread between prompts counts (Proposition 3, minibatch).
        batch_size: B, for iid only.
        constant: b, for the baseline constant only; or one of each prompt, (P,), in the pool's order. With
            the reward of one greedy completion of each this is ReMax.

    Returns:
        a row for each baseline and group size: baseline, group_size, mse, low, high, se, biased.
        Estimates are unbiased where ``biased`` is false, so they may be negative. Intervals regard
        the prompts as a sample of all prompts; for the fixed set itself they are wider than needed.

    Raises:
        InputError: any of these is not as said.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> curves(pool, [2, 4], ["grpo"])[["baseline", "group_size", "mse"]].round(4).values.tolist()
    [['grpo', 2, 0.25], ['grpo', 4, 0.0903]]
    """
    names, sizes = names_of(baselines, constant), sizes_of(group_sizes)
    moments = prompt_moments(pool)
    batches = Batches(pool, moments, design, batch_size)
    rows = group_moments(pool, moments, names, sizes, constant)
    found = beside(*(batches.error(each) for row in rows for each in row))
    low, high = found.interval()
    return pd.DataFrame(
        {
            "baseline": np.repeat(names, len(sizes)),
            "group_size": np.tile(sizes, len(names)),
            "mse": found.full,
            "low": low,
            "high": high,
            "se": found.se,
            "biased": np.repeat([name == "minimum-variance" for name in names], len(sizes)),
        }
    )


def ordering(
    pool: ScoredPool,
    group_size: int,
    baselines: Sequence[str] = _PAPER,
    *,
    constant: ArrayLike | None = None,
) -> pd.DataFrame:
    """Which baseline has the larger MSE at a group size, pair by pair, by paired differences.

    The spread between prompts cancels, so the answer is the same in every design. Of biased tables it would
    not be: their bias does not fall with the batch size.

    Arguments:
        as for :func:`curves`; unbiased baselines.

    Returns:
        a row for each pair: first, second, difference (of the mean errors given the prompt, first
        less second), low, high, se, larger (the name, tie or open), paper (what the paper's
        reading vanilla > grpo > oracle says is larger; none where it says nothing) and reading
        (holds, fails, tie, open or none).

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> ordering(pool, 4)[["first", "second", "larger", "paper"]].values.tolist()[0]
    ['vanilla', 'grpo', 'open', 'vanilla']
    """
    names = names_of(baselines, constant)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"baselines are {names}: at least two different ones are needed")
    sizes = [integer("group size", group_size)]
    moments = prompt_moments(pool)
    found_moments = [each for (each,) in group_moments(pool, moments, names, sizes, constant)]
    for name, each in zip(names, found_moments, strict=True):
        if each.biased:
            raise InputError(
                f"{name} is biased, and its error falls with the batch size to that bias: there is no one "
                "order; compare its noise over its signal (noise_to_signal)"
            )
    # ‖g‖² cancels in the differences.
    errors = [each.second - 2 * each.cross for each in found_moments]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    apart = np.stack([errors[i] - errors[j] for i, j in pairs], axis=1)
    found = means(apart, pool.looks)
    low, high = found.interval()
    rows = []
    for place, (i, j) in enumerate(pairs):
        first, second = names[i], names[j]
        larger = "open"
        if low[place] > 0 or high[place] < 0:
            larger = first if low[place] > 0 else second
        elif low[place] == high[place] == 0:
            larger = "tie"
        paper = reading = "none"
        if first in _PAPER and second in _PAPER:
            paper = min(first, second, key=_PAPER.index)
            reading = "holds" if larger == paper else "fails"
            if larger in ("open", "tie"):
                reading = larger
        rows.append(
            (
                first,
                second,
                found.full[place],
                low[place],
                high[place],
                found.se[place],
                larger,
                paper,
                reading,
            )
        )
    columns = ["first", "second", "difference", "low", "high", "se", "larger", "paper", "reading"]
    return pd.DataFrame(rows, columns=columns)


Array = NDArray[np.float64]


def oracle_ratio(
    pool: ScoredPool, group_sizes: Sequence[int], *, design: str = "prompt"
) -> pd.DataFrame:
    """MSE of grpo over MSE of the oracle (Corollary 4, oracle), from moments.

    1 + (φ + ‖g‖²) / ((G-1)(τ - ‖g‖²)), in the design iid 1 + c3 / ((G-1)(G c1 + c2)): a ratio of unbiased
    estimates, so biased by a term of order 1/P. Intervals are of the logarithm.

    Arguments:
        group_sizes: G >= 2.
        design: prompt (fixed is the same) or iid.

    Returns:
        a row for each group size: group_size, predicted, low, high.
    """
    sizes, moments = sizes_of(group_sizes), prompt_moments(pool)
    batches = Batches(pool, moments, design)
    both = group_moments(pool, moments, ["grpo", "oracle"], sizes)
    top, below = (beside(*(batches.error(found) for found in row)) for row in both)
    predicted, low, high = _exponential(log_ratio(top, below))
    return pd.DataFrame({"group_size": sizes, "predicted": predicted, "low": low, "high": high})


def noise_to_signal(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("grpo", "std", "maxrl", "bayes:1,1", "oracle"),
    *,
    design: str = "iid",
    batch_size: int = 1,
    constant: ArrayLike | None = None,
    aggregation: str = "sequence-sum",
) -> pd.DataFrame:
    """tr Cov ĝ / ‖E ĝ‖² of every baseline at every group size, which no rescaled learning rate changes.

    The error about the estimator's own mean, in units of that mean: where advantages are divided by the
    standard deviation, or by the mean as in MaxRL, ĝ has another length and direction than g, and its MSE
    for g says little. tr Cov ĝ and ‖E ĝ‖² are unbiased, from different prompts and groups
    (:func:`ustat_pg.llm.tables.table_moments`); the ratio is biased by a term of order 1/P.

    Arguments:
        pool: of N rollouts a prompt; of at least two prompts, with sketches, unless the design is prompt.
        group_sizes: as for :func:`ustat_pg.llm.estimates.curves`.
        baselines: as there; the first is what others are compared with.
        design: iid, B prompts drawn anew, as in training: the noise is (E‖ĝ₁‖² - ‖E ĝ‖²)/B of one group's
            ĝ₁. fixed, the P prompts once each. prompt, E tr Cov(ĝ | X) over E‖E[ĝ | X]‖². The last two
            take biased tables up to G = N/2 only.
        batch_size: B, for iid only.
        constant: as there.
        aggregation: sequence-sum, s the sum over a completion's tokens; sequence-mean, s/|y|, as TRL's
            ``loss_type="grpo"``, of tables by counts, design iid and pools scored ``by_length``. Of a pool
            weighted by token (:mod:`ustat_pg.llm.pool`) either is of the weighted scores, of tables
            by counts and design iid too.

    Returns:
        a row for each baseline and group size: baseline, group_size; noise, signal, noise_se, signal_se;
        ratio, low, high, with Fieller's 95% interval; relative, relative_low, relative_high, the ratio over
        the first baseline's at that group size by paired differences of logarithms. NaN where signal, or
        for relative noise, is not positive.

    Raises:
        InputError: any of these is not as said.

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
    ...     [[[1.0], [-1.0], [2.0], [0.0]], [[2.0], [-1.0], [1.0], [-1.0]]],
    ... )
    >>> found = noise_to_signal(pool, [3], ["grpo", "dr-grpo", "std"])
    >>> found[["baseline", "noise", "signal", "ratio"]].round(4).values.tolist()
    [['grpo', 0.0972, 0.3889, 0.25], ['group-mean', 0.0432, 0.1728, 0.25], ['std', 0.1944, 0.7778, 0.25]]
    """
    names, sizes = names_of(baselines, constant), sizes_of(group_sizes)
    raw = pool.weighted or aggregation == "sequence-mean"
    moments = None if raw else prompt_moments(pool)
    batches = Batches(pool, moments, design, batch_size)
    if raw and design != "iid":
        raise InputError(
            f"design is {design!r}: aggregation sequence-mean and pools weighted by token take iid"
        )
    rows, first = [], list[Means]()
    for name, found in zip(
        names, group_moments(pool, moments, names, sizes, constant, aggregation), strict=True
    ):
        for place, (size, each) in enumerate(zip(sizes, found, strict=True)):
            both = batches.noise(each)
            ratio = _divided(both)
            low, high = ratio_interval(both)
            if len(first) == place:
                first.append(ratio)
            relative = _exponential(log_ratio(ratio, first[place]))
            ends = *both.full, *both.se, ratio.full[0], low, high, *(end[0] for end in relative)
            rows.append((name, size, *map(float, ends)))
    columns = ["baseline", "group_size", "noise", "signal", "noise_se", "signal_se", "ratio"]
    columns += ["low", "high", "relative", "relative_low", "relative_high"]
    return pd.DataFrame(rows, columns=columns)


def _divided(both: Means) -> Means:
    """The first of two columns over the second; NaN where that is not positive."""

    def divide(given: Array) -> Array:
        top, below = given[..., :1], given[..., 1:]
        return np.where(below > 0, top / np.where(below > 0, below, 1.0), np.nan)

    return both.apply(divide)


def log_ratio(top: Means, below: Means) -> Means:
    """The logarithms of ratios, column by column; NaN where one of the two is not positive."""

    def logs(given: Array) -> Array:
        over, under = np.split(given, 2, axis=-1)
        good = (over > 0) & (under > 0)
        return np.where(
            good, np.log(np.where(good, over, 1.0)) - np.log(np.where(good, under, 1.0)), np.nan
        )

    return beside(top, below).apply(logs)


def _exponential(logs: Means) -> tuple[Array, Array, Array]:
    """The ratios of their logarithms, and the ends of their intervals; NaN where there is none."""
    known = np.isfinite(logs.full)
    low, high = logs.interval()
    value, low, high = (
        np.where(known, np.exp(np.where(known, each, 0.0)), np.nan)
        for each in (logs.full, low, high)
    )
    return value, low, high


_TIE = 1e-12


def prompt_table(pool: ScoredPool) -> pd.DataFrame:
    """A row for each prompt: its moments, b*, corr(‖s‖², z), and whether oracle beats vanilla.

    b* = E[‖s‖² z]/E‖s‖² is a ratio (biased by order 1/N; V where all scores are 0), the correlation is
    NaN where rewards or norms are all equal. Whether the oracle beats vanilla is the sign of an unbiased
    estimate of the difference, 1 or 0 and not a proof; it is NaN where all rewards are equal, which
    says nothing of it.
    """
    found = prompt_moments(pool)
    norms = pool.squared_norms
    moving = found.fisher_trace > 0
    best = np.where(
        moving, found.norm_reward / np.where(moving, found.fisher_trace, 1.0), found.value
    )
    apart = norms - norms.mean(axis=1, keepdims=True)
    centred = leave_one_out(pool.rewards)
    width = np.sqrt((apart**2).sum(axis=1) * (centred**2).sum(axis=1))
    varied = (np.ptp(norms, axis=1) > _TIE * norms.max(axis=1)) & (np.ptp(pool.rewards, axis=1) > 0)
    product = (apart * centred).sum(axis=1)
    correlation = np.where(varied, product / np.where(varied, width, 1.0), np.nan)
    gain = found.norm_squared_reward - found.norm_squared_advantage
    return pd.DataFrame(
        {
            "prompt": pool.prompts,
            "value": found.value,
            "reward_variance": found.reward_variance,
            "fisher_trace": found.fisher_trace,
            "gradient_sq": found.gradient_sq,
            "norm_squared_advantage": found.norm_squared_advantage,
            "variance_trace": found.variance_trace,
            "optimal_baseline": best,
            "correlation": correlation,
            "oracle_beats_vanilla": np.where(
                np.ptp(pool.rewards, axis=1) > 0,
                gain > _TIE * np.abs(found.norm_squared_reward),
                np.nan,
            ),
        }
    )


def summary(pool: ScoredPool) -> pd.DataFrame:
    """What the pool says in a few numbers, with 95% intervals.

    pass_rate E V; reward_variance E σ²; fisher_trace E tr F; gradient_sq E‖g(X)‖²; correlation of ‖s‖²
    and z within prompts, E cov / √(E var E var); optimal_baseline, E[‖s‖² z]/E tr F, the best constant of
    all prompts; best_less_value, E[‖s‖² a]/E tr F, that less the value so weighted (0 under
    Assumption 2); mixed, the share of prompts whose rewards are not all equal; oracle_beats_vanilla, its
    share of the mixed prompts by :func:`prompt_table`, drawn towards a half by sampling errors.

    Returns:
        a row for each: name, value, low, high, se, biased.
    """
    found, table = prompt_moments(pool), prompt_table(pool)
    norms, count = pool.squared_norms, pool.rollouts
    apart = norms - norms.mean(axis=1, keepdims=True)
    columns = np.column_stack(
        [
            found.value,
            found.reward_variance,
            found.fisher_trace,
            found.gradient_sq,
            found.norm_reward,
            table["oracle_beats_vanilla"].fillna(0.0),
            table["oracle_beats_vanilla"].notna().astype(float),
            found.norm_advantage,
            (apart**2).sum(axis=1) / (count - 1),
        ]
    )

    def quantities(given: Array) -> Array:
        parts = np.moveaxis(given, -1, 0)
        value, variance, trace, gradient, reward, better, mixed, product, spread = parts
        width = np.sqrt(np.maximum(spread * variance, 0.0))
        wide, moving = width > 0, trace > 0
        correlation = np.where(wide, product / np.where(wide, width, 1.0), np.nan)
        below = np.where(moving, trace, 1.0)
        best, gap = np.where(moving, reward / below, value), np.where(moving, product / below, 0.0)
        share = np.where(mixed > 0, better / np.where(mixed > 0, mixed, 1.0), np.nan)
        columns = [value, variance, trace, gradient, correlation, best, gap, mixed, share]
        return np.stack(columns, axis=-1)

    known = means(columns, pool.looks).apply(quantities)
    low, high = known.interval()
    shares = share_interval(known)
    names: dict[str, Any] = {
        "pass_rate": False,
        "reward_variance": False,
        "fisher_trace": False,
        "gradient_sq": False,
        "correlation": True,
        "optimal_baseline": True,
        "best_less_value": True,
        "mixed": False,
        "oracle_beats_vanilla": True,
    }
    mixed = list(names).index("mixed")
    low[mixed], high[mixed] = (ends[mixed] for ends in shares)
    return pd.DataFrame(
        {
            "name": list(names),
            "value": known.full,
            "low": low,
            "high": high,
            "se": known.se,
            "biased": list(names.values()),
        }
    )
