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
"""Prompts in which ‖g(x)‖² must be seen for an upper end of what rests on it."""
_ALONE = 1.5
"""Prompts that carry the spread of E‖s‖² below which one has it alone."""


@dataclass(frozen=True)
class ConstantsEstimate(Estimates):
    """What a pool says of the constants of Proposition 3 (minibatch), with errors and 95% intervals.

    As unbiased estimates c1 and the signal may be negative. Why an end is not known: ``not_known``.

    Arguments:
        c1: tr Cov_X g(X).
        c2: E[τ - ‖g(X)‖²].
        c3: E[φ + ‖g(X)‖²].
        vanilla: E[E[‖s‖² z²] - ‖g(X)‖²].
        signal: ‖E g(X)‖².
        g_star: 1 + √(c3/c1), infinite where c1 is not positive.
        k_crit: outputs of a step at which its least error is the signal; infinite where that is not positive.
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
        """Those of means of c1, c2, c3, vanilla and the signal.

        Arguments:
            parts: the means, over prompts.
            signal: the interval of the signal; that of the means unless given.
            hidden: why c1 and c3 have no upper end, of :func:`hidden_gradients`; None where they have.
            alone: why no constant has, of :func:`hidden_prompts`.
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
        """The constants whose estimates are negative and count as 0 in :meth:`predictions`."""
        names = ("c1", "c2", "c3", "vanilla")
        return tuple(name for name in names if self.estimates[name].value < 0)

    def predictions(self) -> MseConstants:
        """The constants that predictions and advice take; negative estimates become 0."""
        known = (self.c1, self.c2, self.c3, self.vanilla)
        return MseConstants(*(max(each.value, 0.0) for each in known))

    @property
    def unbounded(self) -> bool:
        """Whether the data allow c1 = 0, so that G* has no upper limit."""
        return self.c1.low <= 0

    def to_dict(self) -> dict[str, Any]:
        """The rows of ``to_frame``, and why ends are not known, as JSON has them."""
        return {"constants": plain(self.to_frame()), "not_known": self.not_known}

    def __str__(self) -> str:
        return interval_lines(self)


def constants(pool: ScoredPool, population: int | None = None) -> ConstantsEstimate:
    """The constants behind MSE(G, B) = (1/B)(c1 + c2/G + c3/(G(G-1))) and G* (Theorem 7, group_size).

    Arguments:
        pool: a pool of at least two prompts.
        population: X, where the law of prompts is a set of X, of which the pool has some or all: two
            different prompts have then a mean product of ‖g‖² - c1/(X-1). Intervals do not shrink by
            what of the set is seen.

    Raises:
        InputError: a set of fewer prompts than the pool's, or than 2.

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
    """Why what rests on ‖g(x)‖² has no upper end: too few prompts show it; None where enough do.

    With rare rewards, or rare failures, no prompt but those that have two rewards or more apart from their
    most common one shows it.
    """
    rewards, count = pool.rewards, pool.distinct
    alike = (rewards[:, :, None] == rewards[:, None, :]).sum(axis=2).max(axis=1)
    telling = int((pool.by_prompt(alike <= rewards.shape[1] - 2) > 0).sum())
    if telling >= _TELLING or count < FEW:
        return None
    return (
        f"{telling} of {count} prompts have two rewards or more apart from their most common one, and "
        "it is seen in no other"
    )


def hidden_prompts(pool: ScoredPool) -> str | None:
    """Why a mean over prompts of what ‖s‖² is in has no upper end: one prompt's scores are far longer than
    all others', and such prompts are seen by chance; None where none is.
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
    """Means over prompts of c1, c2, c3, vanilla and the signal, without bias; of a set of so many prompts."""
    moments, sketches = prompt_moments(pool), pool.by_prompt(gradients(pool))
    spread = moments.gradient_sq
    # The signal is no mean over prompts: it is taken off last.
    three = constants_from(moments.norm_squared_advantage, moments.variance_trace, spread, 0.0)
    columns = np.column_stack([*three, moments.norm_squared_reward - spread])
    averages = beside(over_prompts(pool, columns), pairs(sketches, looks=pool.looks))

    def with_c1(columns: Any) -> Any:
        between = columns[..., :1] - columns[..., 4:]
        seen = 0.0 if population is None else between / population
        return np.concatenate([between - seen, columns[..., 1:4], columns[..., 4:] + seen], axis=-1)

    # c1 is of products of different rewards.
    return averages.apply(with_c1, tail=averages.tail_of_all * np.array([0.5, 1.0, 1.0, 1.0, 1.0]))
