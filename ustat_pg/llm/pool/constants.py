"""The constants c1, c2, c3 of a pool and the best group size, each with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...display.shown import plain
from ...inference import FEW, Interval, Means, beside, norm_interval, pairs, shape_of, within
from ...inference.constants import Estimates, constant_estimates, least_budget
from ...inference.estimate import Estimate
from ...predictions import MseConstants
from ...predictions.closed_forms import constants_from
from ...validation import InputError, integer
from .moments import gradients, over_prompts, prompt_moments
from .printing import interval_lines
from .scored import ScoredPool

_TELLING = 3
"""The fewest prompts that must show ‖g(x)‖² for an upper end of quantities that depend on it."""
_ALONE = 1.5
"""If fewer effective prompts than this carry the spread of E‖s‖², one prompt dominates."""


@dataclass(frozen=True)
class ConstantsEstimate(Estimates):
    """A pool's estimates of the constants of Proposition 3 (minibatch), with errors and 95% intervals.

    The estimates are unbiased, so c1 and the signal may be negative. ``not_known`` says why an end is not
    known.

    Arguments:
        c1: tr Cov_X g(X).
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        vanilla: E[E[‖s‖² z²] - ‖g(X)‖²].
        signal: ‖E g(X)‖².
        g_star: 1 + √(c3/c1), infinite if c1 is not positive.
        k_crit: outputs per step at which the least error equals the signal; infinite if the signal is not
            positive.
    """

    c1: Estimate
    c2: Estimate
    c3: Estimate
    vanilla: Estimate
    signal: Estimate
    g_star: Estimate
    k_crit: Estimate

    @classmethod
    def of_means(
        cls,
        parts: Means,
        signal: Interval | None = None,
        hidden: str | None = None,
        alone: str | None = None,
    ) -> ConstantsEstimate:
        """The constants from means of c1, c2, c3, vanilla and the signal.

        Arguments:
            parts: the means over prompts.
            signal: interval of the signal (default: from the means).
            hidden: why c1 and c3 have no upper end, from :func:`hidden_gradients`; None if they have one.
            alone: why no constant has an upper end, from :func:`hidden_prompts`.
        """
        found, strength = constant_estimates(parts), parts.estimate(4)
        found["vanilla"] = parts.estimate(3)
        for reason, names in ((alone, (*found.keys() - {"g_star"},)), (hidden, ("c1", "c3"))):
            for name in names if reason is not None else ():
                found[name] = replace(found[name], high=math.inf, reason=reason)
        if hidden is not None:
            found["g_star"] = replace(found["g_star"], low=1.0)
        if signal is not None:
            strength = within(strength, signal)
        crit = least_budget(parts, signal)
        return cls(**found, signal=strength, k_crit=crit)

    @property
    def clipped(self) -> tuple[str, ...]:
        """The constants with negative estimates, which count as 0 in :meth:`predictions`."""
        names = ("c1", "c2", "c3", "vanilla")
        return tuple(name for name in names if self.estimates[name].value < 0)

    def predictions(self) -> MseConstants:
        """The constants for predictions and advice; negative estimates become 0."""
        known = (self.c1, self.c2, self.c3, self.vanilla)
        return MseConstants(*(max(each.value, 0.0) for each in known))

    @property
    def unbounded(self) -> bool:
        """Whether c1 = 0 is possible given the data, so that G* has no upper limit."""
        return self.c1.low <= 0

    def to_dict(self) -> dict[str, Any]:
        """The rows of ``to_frame``, and why ends are not known, as a dict for JSON."""
        return {"constants": plain(self.to_frame()), "not_known": self.not_known}

    def __str__(self) -> str:
        return interval_lines(self)


def constants(pool: ScoredPool, population: int | None = None) -> ConstantsEstimate:
    """The constants behind MSE(G, B) = (1/B)(c1 + c2/G + c3/(G(G-1))) and G* (Theorem 7, group_size).

    Arguments:
        pool: a pool of at least two prompts.
        population: X, if prompts come from a set of X and the pool has some or all of it. Then two different
            prompts have a mean product of ‖g‖² - c1/(X-1). Intervals do not shrink by the seen share of the
            set.

    Raises:
        InputError: the set has fewer prompts than the pool, or fewer than 2.

    >>> pool = ScoredPool.from_scores(
    ...     [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]],
    ...     [[[1.0], [-1.0], [1.0], [-1.0]], [[-1.0], [1.0], [1.0], [-1.0]]],
    ... )
    >>> estimate = constants(pool)
    >>> round(estimate.c2.value, 12), round(estimate.c3.value, 4), estimate.unbounded
    (0.0625, 0.5208, True)
    """
    if population is not None and integer("population", population, 2) < pool.distinct:
        raise InputError(
            f"population is {population}: the pool has {pool.distinct} different prompts of it"
        )
    parts = constant_means(pool, population)
    low, high = norm_interval(pool.by_prompt(gradients(pool)), pool.looks)
    above = 0.0 if population is None else max(float(parts.full[0]), 0.0) / (population - 1)
    reasons = hidden_gradients(pool), hidden_prompts(pool)
    return ConstantsEstimate.of_means(parts, (low + above, high + above), *reasons)


def hidden_gradients(pool: ScoredPool) -> str | None:
    """The reason why quantities from ‖g(x)‖² have no upper end, if too few prompts show it; None if enough
    do.

    With rare rewards, or rare failures, only prompts with at least two rewards different from their most
    common one show it.
    """
    rewards, count = pool.rewards, pool.distinct
    alike = (rewards[:, :, None] == rewards[:, None, :]).sum(axis=2).max(axis=1)
    telling = int((pool.by_prompt(alike <= rewards.shape[1] - 2) > 0).sum())
    if telling >= _TELLING or count < FEW:
        return None
    return (
        f"only prompts with at least two rewards different from their most common one show it, "
        f"and these are {telling} of {count}"
    )


def hidden_prompts(pool: ScoredPool) -> str | None:
    """The reason why means of quantities with ‖s‖² have no upper end: the scores of one prompt are far longer
    than all others, and a pool contains such prompts only by chance; None if there is no such prompt.
    """
    lengths = pool.by_prompt(pool.squared_norms.mean(axis=1))
    if pool.distinct < FEW:
        return None
    _, _, (carriers,) = shape_of((lengths - lengths.mean())[:, None])
    largest = int(lengths.argmax())
    if not 0 < carriers < _ALONE:
        return None
    name = pool.prompts[int(np.flatnonzero(pool.places == largest)[0])]
    share = lengths[largest] / lengths.sum()
    return f"prompt {name!r} alone has {share:.0%} of E‖s‖², and others like it may be unseen"


def constant_means(pool: ScoredPool, population: int | None = None) -> Means:
    """Unbiased means over prompts of c1, c2, c3, vanilla and the signal, for a set of this many prompts."""
    moments, sketches = prompt_moments(pool), pool.by_prompt(gradients(pool))
    spread = moments.gradient_sq
    # The signal is not a mean over prompts, so it is subtracted last.
    three = constants_from(moments.norm_squared_advantage, moments.variance_trace, spread, 0.0)
    columns = np.column_stack([*three, moments.norm_squared_reward - spread])
    averages = beside(over_prompts(pool, columns), pairs(sketches, looks=pool.looks))

    def with_c1(columns: Any) -> Any:
        between = columns[..., :1] - columns[..., 4:]
        seen = 0.0 if population is None else between / population
        return np.concatenate([between - seen, columns[..., 1:4], columns[..., 4:] + seen], axis=-1)

    # c1 contains products of different rewards.
    return averages.apply(with_c1, tail=averages.tail_of_all * np.array([0.5, 1.0, 1.0, 1.0, 1.0]))
