"""The noise of estimators and group sizes that a training does not use, from each completion's own gradient.

With rewards 0 and 1 the advantages of a group are a table a₁(n), a₀(n) by its successes. Completion i adds Aᵢ
uᵢ, so uᵢ is its gradient divided by Aᵢ. All groups of G' among the N completions of a group show the result
of another table. The number of successes among the others of one or two completions is hypergeometric, so the
mean needs no sampling: it is linear in sums over successes and over failures (as in
:mod:`ustat_pg.llm.pool.tables`, but without a centre, since u may be weighted by length). A group with
advantages 0 has no uᵢ, and needs none if tables give equal rewards advantages 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inference import log_ratio, means
from ..inference.estimate import Estimate
from ..predictions.closed_forms import table_shares
from ..validation import Array, InputError, integer
from .estimate import OF_SHARES, Law, NoiseEstimate, estimate_noise, noise_and_signal
from .shares import two_valued


@dataclass(frozen=True)
class Blocks:
    """The per-completion gradients of one step, reduced to the sums that every table needs.

    Groups with equal size and equal number of successes have the same coefficients in any table: they form
        one kind, and only sums over each kind are kept.

    Arguments:
        counts: for each kind, completions and successes of a group, whether uᵢ are known, and the number of
            groups, (C, 4).
        alone: Σ‖uᵢ‖² over successes and over failures, (C, 2).
        pairs: inner products of two successes, of two failures, and of one of each, within groups, (C, 3).
        products: inner products of Σ uᵢ over successes and over failures, between groups, (C, 2, C, 2).
    """

    counts: Array
    alone: Array
    pairs: Array
    products: Array

    def sums(self, tables: dict[int, Any]) -> Array:
        """The sums of :func:`ustat_pg.noise.estimate.step_sums`, as if a table had made this step.

        ``tables`` has the coefficients for groups of each N; the step keeps its completions, in groups of G'.
        """
        rows = np.array([tables[int(n)][int(won)] for n, won, *_ in self.counts])
        groups, size = self.counts[:, 3].sum(), rows[0, 7]
        pairs = (rows[:, 2:5] * self.pairs).sum() / groups
        second = (rows[:, :2] * self.alone).sum() / groups + pairs
        apart = np.einsum("ga,gahb,hb->", rows[:, 5:7], self.products, rows[:, 5:7])
        pair_count = groups * (groups - 1)
        n = self.counts[:, 0] @ self.counts[:, 3]
        signal = apart / max(pair_count, 1)
        total = n**2 * signal + n * size * (second - signal)
        # β of the pairs of a group; the group's mean has (G-1)/G of it.
        known = groups if size > 1 else 0
        same = known * pairs * size / max(size - 1, 1)
        return np.array(
            [
                known,
                0,
                pair_count,
                same,
                apart,
                0,
                0,
                0,
                n,
                n**2,
                total,
                n / size,
                *[0] * OF_SHARES,
            ],
            dtype=float,
        )


def group_blocks(rows: Array, groups: list[NDArray[np.int64]], advantages: list[Any]) -> Blocks:
    """The sums that tables need from a step's completions.

    Arguments:
        rows: n times what each adds to the step, (n, k).
        groups: prompt of each.
        advantages: advantage of each; above 0 for a success, below 0 for a failure.

    Raises:
        InputError: a micro-batch has several completions, rewards are graded, a group is split, or advantages
            of 0 occur next to others.
    """
    if any(row is None for row in advantages):
        raise InputError("a micro-batch came without advantages: give them to micro_batch")
    if any(len(group) > 1 for group in groups):
        raise InputError("micro-batches hold several completions: give NoiseMeter the model itself")
    a = np.array([row[0] for row in advantages])
    places = np.unique(np.concatenate(groups), return_inverse=True)[1]
    won = a > 0
    counts = np.stack([np.bincount(places), np.bincount(places, won)], axis=1)
    zero = np.bincount(places, a == 0)
    if ((zero > 0) & (zero < counts[:, 0])).any():
        raise InputError(
            "a completion of advantage 0 shares a micro-batch, so its gradient is not known"
        )
    if not two_valued(a, places).all():
        raise InputError("advantages of a group have more than two values, so rewards are graded")
    u = rows / np.where(a == 0, 1.0, a)[:, None]
    sums, alone = np.zeros((len(counts), 2, u.shape[1])), np.zeros((len(counts), 2))
    np.add.at(sums, (places, 1 - won), u)
    np.add.at(alone, (places, 1 - won), np.square(u).sum(axis=1))
    own = np.einsum("gak,gbk->gab", sums, sums)
    pairs = np.stack([own[:, 0, 0] - alone[:, 0], own[:, 1, 1] - alone[:, 1], own[:, 0, 1]], axis=1)
    each = np.column_stack([counts, zero == 0]).astype(float)
    kinds, place_of, groups_of = np.unique(each, axis=0, return_inverse=True, return_counts=True)
    member = (place_of.reshape(-1) == np.arange(len(kinds))[:, None]).astype(float)
    flat = np.einsum("cg,gak->cak", member, sums).reshape(-1, u.shape[1])
    products = (flat @ flat.T).reshape(len(kinds), 2, len(kinds), 2)
    same = np.arange(len(kinds))
    products[same, :, same] -= np.einsum("cg,gab->cab", member, own)
    return Blocks(
        np.column_stack([kinds, groups_of]).astype(float), member @ alone, member @ pairs, products
    )


def beside(values: Array, others: int, won: NDArray[Any]) -> Array:
    """The mean of values(0), ..., values(r) by the number of successes among r draws without replacement from
    ``others``, of which ``won`` are successes. It has the shape of ``won``, which is clipped to the possible
    values.
    """
    # Only formulas of counts need scipy.
    from scipy.stats import hypergeom

    drawn = len(values) - 1
    left = np.clip(won, 0, others)[..., None]
    # SciPy needs at least one item to draw from.
    return np.asarray(hypergeom.pmf(np.arange(drawn + 1), max(others, 1), left, drawn) @ values)


def coefficients(table: Any, room: int) -> Array:
    """A table's coefficients in groups of N, by the successes in them, (N + 1, 8).

    They multiply the two entries of ``alone``, the products of two successes, of two failures and of one of
    each, and the two sums; the last is G'.
    """
    n = np.arange(room + 1)

    def mean(own: int, won: int, values: Array) -> Array:
        """The mean over groups, of a sum over one or two of their completions, (N + 1,)."""
        there = (n >= won) & (room - n >= own - won)
        return np.where(there, beside(values, room - own, n - won), 0.0) / math.perm(room, own)

    won, lost, both, none, *mixed = table_shares(table, mean)
    columns = won, lost, both, none, sum(mixed), *table.means(mean), table.group_size
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(float)


@dataclass(frozen=True)
class Alternative:
    """An estimator at a group size, as if it had made the steps of a window from the same completions.

    Arguments:
        estimator: its name.
        group_size: G'.
        noise: signal, noise and critical budget of a step with the same number of completions.
        over_best: its K_crit divided by that of the first estimator at the best given group size, with the
            interval from a paired jackknife of the logarithm over steps; the interval ignores the choice of
            the best. NaN if a signal is not above 0.
    """

    estimator: str
    group_size: int
    noise: NoiseEstimate
    over_best: Estimate


def alternatives(
    steps: Sequence[Blocks],
    estimators: Sequence[str],
    group_sizes: Sequence[int] | None,
    population: int | None = None,
) -> list[Alternative]:
    """The noise of several tables at each group size, all from the same steps.

    Arguments:
        population: as for :func:`~ustat_pg.noise.estimate.estimate_noise`.

    Raises:
        InputError: a name is not a table by counts, a group size is too large for every group, or a table
            gives equal rewards advantages although their gradients are not known.
    """
    # Only formulas of counts need scipy.
    from ..predictions import count_table

    if isinstance(estimators, str) or not len(estimators):
        raise InputError(f"estimators are {estimators!r}: give a list of names")
    counts = np.concatenate([step.counts for step in steps])
    rooms = sorted({int(n) for n in counts[:, 0]})
    sizes = list(range(2, rooms[0] + 1) if group_sizes is None else group_sizes)
    if not sizes:
        raise InputError("no group sizes are given, or groups have one completion")
    rows: list[tuple[str, int, Array]] = []
    for name in estimators:
        for size in sizes:
            if integer("group size", size, 1) > rooms[0]:
                raise InputError(f"group size is {size}: groups have {rooms[0]} completions")
            table = count_table(name, size)
            if (table.successes[-1] or table.failures[0]) and not counts[:, 2].all():
                raise InputError(
                    f"{name} gives groups of equal rewards advantages, but the gradients of such "
                    f"groups are not known, because the training multiplies them by 0"
                )
            parts = {room: coefficients(table, room) for room in rooms}
            rows.append((name, size, np.array([step.sums(parts) for step in steps])))
    estimates = [estimate_noise(sums, population=population) for _, _, sums in rows]
    noises = [
        means(sums, parts="steps").apply(partial(noise_and_signal, law=Law(population, size)))
        for _, size, sums in rows
    ]
    crits = np.nan_to_num([noise.k_crit.value for noise in estimates[: len(sizes)]], nan=math.inf)
    best = noises[int(np.argmin(crits))]
    return [
        Alternative(name, size, estimate, log_ratio(noise, best))
        for (name, size, _), estimate, noise in zip(rows, estimates, noises, strict=True)
    ]
