"""The moments of every estimator's gradient at each prompt of a pool.

**Tables by counts.** With rewards 0 and 1 the advantages of a group are a table a₁(n), a₀(n) by its successes
(:mod:`ustat_pg.predictions.count_tables`), with the mean w(p) g at a prompt, w(p) = E δ(m) with δ(m) =
a₁(m+1) - a₀(m). A pool of N rollouts with n successes contains all groups of G <= N. Means over these need no
sampling: the number of successes among the others of one rollout, or of two, is hypergeometric in n, and its
law multiplies sums of blocks of K_ij = ⟨s_i, s_j⟩ (successes x successes, and so on). So one pool gives the
error, the mean and the noise of every such estimator, also of biased ones, at every G.

:mod:`ustat_pg.llm.pool.weighted` has the errors of weighted baselines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...estimators import advantages
from ...moments.record import Moments
from ...noise.completions import beside, coefficients
from ...predictions import CountTable, best_table, count_table
from ...predictions.closed_forms import inner_product, lone_shares
from ...registry import ALIASES, ESTIMATORS, parse
from ...validation import Array, InputError
from .moments import GroupMoments, PromptMoments, prompt_moments
from .scored import ScoredPool, address
from .weighted import (
    ONE_MORE,
    WEIGHTED,
    at_best_constant,
    group_errors,
    grpo_errors,
    too_large,
    too_small,
)

_PARTS = 10
"""The number of parts of the prompts, by name; each part uses a table learned from the others."""


def binary(pool: ScoredPool) -> bool:
    """Whether all rewards are 0 or 1, as tables by counts need."""
    return bool(np.isin(pool.rewards, (0, 1)).all())


class _Counts:
    """A pool's blocks of K, and the laws of the successes among the others of one or two rollouts."""

    def __init__(self, pool: ScoredPool, lengths: Array | float = 1.0) -> None:
        z = pool.rewards
        if not binary(pool):
            raise InputError(
                "a table by counts needs rewards that are 0 or 1: this pool has others"
            )
        self.count, self.won = pool.rollouts, z.sum(axis=1)
        both = np.stack([z / lengths, (1 - z) / lengths], axis=1)
        self.diagonals = tuple((both**2 @ pool.squared_norms[..., None])[..., 0].T)
        sums = both @ pool.gram @ both.swapaxes(1, 2)
        # Sums of K_ij over i ≠ j: two successes, two failures, one of each.
        self.blocks = (
            sums[:, 0, 0] - self.diagonals[0],
            sums[:, 1, 1] - self.diagonals[1],
            2 * sums[:, 0, 1],
        )

    def beside(self, excluded: int, won: int, values: Array) -> Array:
        """The mean of values(0), ..., values(r) by the successes among r rollouts drawn without ``excluded``
        ones, of which ``won`` are successes, (P,).
        """
        return beside(values, self.count - excluded, self.won - won)

    def alone(self, table: CountTable) -> Array:
        """(1/G) E ‖s‖² A², the part of E‖ĝ‖² of single rollouts, (P,)."""
        total = inner_product(lone_shares(table, self.beside), self.diagonals)
        return np.asarray(total / self.count)

    def centred(self, values: Array) -> Array:
        """E h(m) ‖g‖², as the mean over i ≠ j of K_ij (z_i - c)(z_j - c) E h(m), (P,).

        c is the mean reward of the N-2 others, m the successes among some of them, and h(0), ... are the
        values.
        """
        others = self.count - 2
        both, none, one = self.blocks
        total = both * ((self.count - self.won) / others) ** 2 * self.beside(2, 2, values)
        total += none * (self.won / others) ** 2 * self.beside(2, 0, values)
        rest = (self.won - 1) * (self.count - 1 - self.won) / others**2
        total -= one * rest * self.beside(2, 1, values)
        return total / (self.count * (self.count - 1))


def table_moments(pool: ScoredPool, table: CountTable) -> GroupMoments:
    """The moments of a table's gradient at each prompt, from all groups of the pool.

    By the closed forms of :mod:`ustat_pg.predictions.count_tables`, each a mean over *different* rollouts.
    With m of the G-1 others of a rollout, l of the G-2 others of two, drawn from the pool without
    replacement, and c the mean reward of all N-2 others,

        E‖ĝ‖²   = 1/G mean over i of K_ii E A_i(m)²
                  + (G-1)/G mean over i ≠ j of K_ij (z_i-c)(z_j-c) E[a₁(l+2)² - 2 a₁(l+1) a₀(l+1) + a₀(l)²]
        ⟨E ĝ, g⟩ = mean over i ≠ j of K_ij (z_i-c)(z_j-c) E δ(m)
        E ĝ     = mean over i ≠ j of ½ (s_i-s_j)(z_i-z_j) E δ(m) = ĝ_x E δ(m),

    ĝ_x the pool's leave-one-out gradient. All are unbiased U-statistics, of groups of G, G+1 and G+1
    rollouts; an unbiased table takes groups of up to N. ‖E_X E ĝ‖² comes from pairs of different prompts.

    >>> from ustat_pg.predictions import count_table
    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> moments = table_moments(pool, count_table("std", 2))
    >>> moments.second.round(12).tolist(), moments.cross.round(12).tolist(), moments.factor.tolist()
    ([0.208333333333], [-0.041666666667], [1.0])
    """
    counts = _Counts(pool)
    size, room = table.group_size, pool.rollouts
    if size > room - (not table.unbiased):
        raise too_large(size, pool, "" if table.unbiased else ONE_MORE)
    won, lost, delta = table.successes, table.failures, table.delta
    second = counts.alone(table)
    if size > 1:
        both = won[2:] ** 2 - 2 * won[1:-1] * lost[1:-1] + lost[:-2] ** 2
        second += counts.centred(both) * (size - 1) / size
    gradient_sq = prompt_moments(pool).gradient_sq
    if table.unbiased:
        return GroupMoments.unbiased(second - gradient_sq, gradient_sq)
    return GroupMoments(
        second=second, cross=counts.centred(delta), factor=counts.beside(2, 1, delta)
    )


def own_moments(pool: ScoredPool, estimator: str) -> GroupMoments:
    """The moments of an estimator's gradient in groups of all N rollouts, one draw of ĝ a prompt.

    It uses ĝ = (1/N) Σ A_i s_i itself. ⟨E ĝ, g⟩ needs one more rollout and is not known.

    >>> pool = ScoredPool.from_scores([[2.0, 0.0, 1.0, 1.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> own_moments(pool, "std").second.round(12).tolist()
    [0.5]
    """
    weights = np.asarray(advantages(estimator, pool.rewards)) / pool.rollouts
    second = np.einsum("pi,pij,pj->p", weights, pool.gram, weights)
    unknown = np.full(pool.size, np.nan)
    return GroupMoments(second, unknown, unknown, pool.combined(weights))


def raw_moments(pool: ScoredPool, table: CountTable, *, by_length: bool = False) -> GroupMoments:
    """The moments of (1/G) Σ A_i u_i at each prompt, for weighted scores u with mean not 0.

    u is s/|y|, in a loss that averages the tokens of a completion such as TRL's ``loss_type="grpo"``
    (length_weights); Σ_t w_t s_t, of a pool weighted by token; or that divided by |y|. Rewards cannot be
    centred, and the mean is not a multiple of g: over the groups of the pool it is (1/N) [E a₁ Σ_won u + E a₀
    Σ_lost u], with hypergeometric successes of G-1 others. g is not known here.
    """
    if not (by_length or pool.weighted):
        raise InputError("scores of this pool have mean 0: use table_moments")
    lengths = pool.lengths if by_length else 1.0
    counts, size, room = _Counts(pool, lengths), table.group_size, pool.rollouts
    if size > room:
        raise too_large(size, pool)
    won, lost = table.successes, table.failures
    clipped = (pool.config.get("token_weights") or {}).get("clip") is not None
    if clipped and (won[1:].min() < 0 or lost[:-1].max() > 0):
        raise InputError(
            "weights of this pool are clipped by the sign of centred advantages (above 0 for a "
            "success, below 0 for a failure), but this table has other signs"
        )
    rows = coefficients(table, room)[counts.won.astype(int)]
    both, none, one = counts.blocks
    parts = np.stack([*counts.diagonals, both, none, one / 2], axis=1)
    second, of_won, of_lost = (rows[:, :5] * parts).sum(axis=1), rows[:, 5], rows[:, 6]
    unknown = np.full(pool.size, np.nan)
    each = np.where(pool.rewards == 1, of_won[:, None], of_lost[:, None]) / lengths
    return GroupMoments(second, unknown, unknown, pool.combined(each))


def learned_moments(pool: ScoredPool, moments: PromptMoments, group_size: int) -> GroupMoments:
    """The moments of the best table; each part of the prompts uses the table of the other parts."""
    if pool.distinct < 2:
        raise InputError("the best table is learned on other prompts, but this pool has only one")
    _, first = np.unique(pool.places, return_index=True)
    order = sorted(range(pool.distinct), key=lambda x: address(pool.prompts[first[x]]))
    second, known = np.empty(pool.size), moments.by_prompt(pool)
    for part in np.array_split(np.array(order), min(_PARTS, pool.distinct)):
        others = ~np.isin(range(pool.distinct), part)
        judged = ~others[pool.places]
        table = best_table(as_moments(known, others), group_size)
        second[judged] = table_moments(pool, table).second[judged]
    return GroupMoments.unbiased(second - moments.gradient_sq, moments.gradient_sq)


def as_moments(moments: PromptMoments, chosen: NDArray[np.bool_]) -> Moments:
    """The estimates at some prompts as moments of a problem: shares of successes as pass rates."""
    value, trace = moments.value[chosen], moments.fisher_trace[chosen]
    return Moments(
        context_probs=np.full(len(value), 1 / len(value)),
        value=value,
        reward_variance=value * (1 - value),
        fisher_trace=trace,
        norm_advantage=moments.norm_reward[chosen] - value * trace,
        norm_squared_advantage=np.maximum(moments.norm_squared_advantage[chosen], 0.0),
        gradient_sq=np.maximum(moments.gradient_sq[chosen], 0.0),
        mean_gradient_sq=0.0,
        reward_range=(0.0, 1.0),
    )


OF_POOLS = tuple(
    dict.fromkeys((*(name for name, record in ESTIMATORS.items() if record.of_pools), *WEIGHTED))
)
"""Estimators for any rewards with errors that a pool gives."""
TABLES = (
    "bayes:1,1",
    *(
        record.name
        for record in ESTIMATORS.values()
        if record.by_count and not record.parameters and record.name not in OF_POOLS
    ),
)
"""Tables by counts, for rewards 0 and 1; others can be named too."""


def names_of(estimators: Sequence[str]) -> list[str]:
    """The estimators, by their names in results."""
    if isinstance(estimators, str):
        raise InputError(f"estimators are {estimators!r}: give a list of names")
    names = [ALIASES.get(name, name) for name in estimators]
    for name in names:
        family = ESTIMATORS.get(name.partition(":")[0])
        if name not in OF_POOLS and (family is None or not family.by_count):
            raise InputError(
                f"estimator {name!r} is unknown: choose one of {', '.join(OF_POOLS)}, "
                f"or a table by counts such as {', '.join(TABLES)}"
            )
    return names


def group_moments(
    pool: ScoredPool,
    moments: PromptMoments,
    names: Sequence[str],
    sizes: Sequence[int],
) -> list[list[GroupMoments]]:
    """The moments of each estimator's gradient, at every group size."""
    weighted = [name for name in dict.fromkeys(names) if name in WEIGHTED]
    drawn = {}
    if weighted:
        drawn = dict(
            zip(weighted, zip(*group_errors(pool, weighted, sizes), strict=True), strict=True)
        )
    squares = {
        (): lambda: moments.norm_squared_reward,
        ("value",): lambda: moments.norm_squared_advantage,
        ("optimal_baseline",): lambda: at_best_constant(pool),
    }

    def at(name: str) -> list[GroupMoments]:
        if name in drawn:
            return [
                replace(GroupMoments.unbiased(error, moments.gradient_sq), own=own)
                for error, own in zip(*drawn[name], strict=True)
            ]
        record, _ = parse(name)
        if record.whole_group and min(sizes) > 1:
            # It is (G-1)/G times grpo for any rewards.
            return [
                group.scaled((size - 1) / size)
                for group, size in zip(at("grpo"), sizes, strict=True)
            ]
        if record.of_pools:
            if min(sizes) < record.least_group:
                raise too_small(min(sizes))
            if record.of_pairs:
                errors = [grpo_errors(moments, size) for size in sizes]
            else:
                single = squares[record.needs]() - moments.gradient_sq
                errors = [single / size for size in sizes]
            return [GroupMoments.unbiased(error, moments.gradient_sq) for error in errors]
        if record.needs:
            return [learned_moments(pool, moments, size) for size in sizes]
        return [_by_count(pool, name, size) for size in sizes]

    return [at(name) for name in names]


def _by_count(pool: ScoredPool, name: str, size: int) -> GroupMoments:
    """The moments from all groups of the pool, or from the pool as one group if only that is possible."""
    table = count_table(name, size)
    if size == pool.rollouts and not (table.unbiased and binary(pool)):
        return own_moments(pool, name)
    return table_moments(pool, table)


def raw_group_moments(
    pool: ScoredPool, names: Sequence[str], sizes: Sequence[int], by_length: bool
) -> list[list[GroupMoments]]:
    """The moments if the mean of scores is not 0."""
    for name in names:
        record = ESTIMATORS.get(name.partition(":")[0])
        if record is None or not record.by_count or record.needs:
            raise InputError(
                f"{name} is not a table by counts: aggregation sequence-mean and pools weighted "
                f"by token need one"
            )
    return [
        [raw_moments(pool, count_table(name, size), by_length=by_length) for size in sizes]
        for name in names
    ]
