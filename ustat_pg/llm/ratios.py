"""Ratios of what a pool estimates: grpo's error over the oracle's, and noise over signal.

Numerators and denominators are unbiased. Their ratios are biased by a term of order 1/P, P the number of
prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..validation import InputError
from .batches import Batches
from .constants import ratio_interval
from .errors import group_moments, names_of
from .moments import Means, beside, prompt_moments
from .scored import ScoredPool
from .summary import sizes_of

__all__ = ["noise_to_signal", "oracle_ratio"]

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
            weighted by token (:mod:`ustat_pg.llm.stale`) either is of the weighted scores, of tables
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
