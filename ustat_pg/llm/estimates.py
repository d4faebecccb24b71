"""What a scored pool says about every group size: unbiased moments, error curves, constants.

Every conditional MSE of Theorem 2 (mse) is linear in moments of one prompt,

    MSE_b(G)    = (E[‖s‖² (z-b)²] - ‖g‖²) / G                      vanilla, oracle, any constant
    MSE_grpo(G) = (τ - ‖g‖²) / G + (φ + ‖g‖²) / (G (G-1)),

with τ = E[‖s‖² a²], φ = σ² tr F. Each moment is a mean over tuples of *different* rollouts, a
U-statistic of K_ij = ⟨s_i, s_j⟩ and z, so each is unbiased however few rollouts there are, and so is
the whole curve. Two things are not linear: the error at the best constant b*, a ratio of moments
(``biased`` says so), and that of weighted leave-one-out baselines, a mean over groups that is taken
over random groups of the pool (an incomplete U-statistic: unbiased, for groups that the pool can fill).
Baselines that are tables by counts take the mean over all groups of the pool at once: hypergeometric in
the number of successes, times sums of blocks of K (successes x successes, and so on).

Prompts are compared by sketches of their gradients, see :mod:`ustat_pg.llm.moments`. Errors are those of
a jackknife that deletes a prompt; they hold the noise of rollouts and of random groups too, since both
are drawn anew for each prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln
from scipy.stats import hypergeom

from ..baselines import ALIASES, parse
from ..baselines import BASELINES as RECORDS
from ..moments import Moments
from ..predictions import CountTable, best_table, count_table
from ..validation import InputError, finite_array, integer
from .constants import ConstantsEstimate, constants
from .moments import PromptMoments, means, means_and_spread, prompt_moments
from .scored import ScoredPool, leave_one_out
from .summary import prompt_table, summary

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
    "oracle_ratio",
    "ordering",
    "prompt_moments",
    "prompt_table",
    "summary",
    "table_errors",
    "zero_signal",
]

Array = NDArray[np.float64]

WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")
"""Leave-one-out means with weights ‖s‖², the length, and verl's token proxy."""
BASELINES = ("vanilla", "grpo", "oracle", "minimum-variance", *WEIGHTED)
"""What :func:`curves` draws, and ``constant`` with its number."""
TABLES = ("bayes:1,1", "best")
"""Leave-one-out tables by counts, of which it draws any by name: Bayes, and the best, which is learned on
other prompts than it is judged on. Rewards are 0 and 1."""
DESIGNS = ("prompt", "fixed", "iid")
"""One prompt, the fixed set once each, prompts drawn i.i.d."""
_PAPER = ("vanilla", "grpo", "oracle")
"""The paper's reading of Figure 4, the largest error first."""
_PARTS = 10
"""Parts of the prompts, by their names, of which each is judged by what the others teach."""
_ENTRIES = 4_000_000
"""Entries of Gram matrices that are rearranged at once."""


def _leave_out_ratio(weights: Array, rewards: Array) -> Array:
    """Σ_{j≠i} w_j z_j / Σ_{j≠i} w_j along the last axis; 0 where all other weights are 0."""
    # Sums over the others, not total minus own, which would be rounding where one dwarfs the rest.
    apart = 1 - np.eye(rewards.shape[-1])
    weight, weighted = weights @ apart, (weights * rewards) @ apart
    empty = weight == 0
    return np.where(empty, 0.0, weighted / np.where(empty, 1.0, weight))


def _at_best_constant(pool: ScoredPool, method: str) -> Array:
    """E[‖s‖² (z - b*)²] of each prompt, (P,): biased, in the way the method says."""
    z, norms, count = pool.rewards, pool.squared_norms, pool.rollouts
    if method == "split":
        return (norms * (z - _leave_out_ratio(norms, z)) ** 2).mean(axis=1)
    total = norms.sum(axis=1, keepdims=True)
    best = (norms * z).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0)
    plug_in = (norms * (z - best) ** 2).sum(axis=1) / count
    if method == "plug-in":
        return plug_in
    # Without rollout k the weighted sum of squares about its own best constant falls by
    # q_k (z_k - b)² T / (T - q_k), T the total weight.
    drop = norms * (z - best) ** 2
    left = total - norms
    ratio = np.where(left > 0, total / np.where(left > 0, left, 1.0), 0.0)
    without = np.maximum(plug_in[:, None] * count - drop * ratio, 0.0) / (count - 1)
    return count * plug_in - (count - 1) * without.mean(axis=1)


_METHODS = ("jackknife", "plug-in", "split")


def _streams(pool: ScoredPool, seed: int, permutations: int) -> NDArray[np.intp]:
    """Random orders of the rollouts, (permutations, P, N), addressed by seed and prompt."""
    orders = np.empty((permutations, pool.size, pool.rollouts), dtype=np.intp)
    base = np.tile(np.arange(pool.rollouts), (permutations, 1))
    for x, name in enumerate(pool.prompts):
        orders[:, x] = np.random.default_rng([seed, _address(name)]).permuted(base, axis=1)
    return orders


def _group_advantages(name: str, rewards: Array, weights: dict[str, Array]) -> Array:
    if name == "vanilla":
        return rewards
    if name == "grpo":
        return leave_one_out(rewards)
    return rewards - _leave_out_ratio(weights[name], rewards)


def group_errors(
    pool: ScoredPool,
    baselines: Sequence[str],
    group_sizes: Sequence[int],
    *,
    permutations: int = 16,
    seed: int = 0,
) -> Array:
    """E‖ĝ‖² - ‖g‖² of baselines that read the group, from random groups of the pool.

    Each permutation of a prompt's rollouts is cut into ⌊N/G⌋ groups, which are i.i.d. rollouts of the
    policy, so the mean of ‖ĝ‖² = 1/G² Σ_ij A_i A_j K_ij over them is unbiased: an incomplete
    U-statistic of order G. All baselines and group sizes share the permutations. What is taken off is
    ‖g‖² from pairs of the pool whose rewards are centred as the baseline centres them, by the others
    of the pool: unbiased for any centre that looks at neither of the pair, and with nearly the noise
    that ‖ĝ‖² has, so that it cancels.

    Arguments:
        pool: of N rollouts.
        baselines: of vanilla, grpo and :data:`WEIGHTED`.
        group_sizes: from 2 to N (vanilla: from 1).
        permutations: of each prompt's rollouts.
        seed: of them; a prompt's own depend on the seed and its name only.

    Returns:
        the error at each prompt, (baselines, group sizes, P).

    Raises:
        InputError: an unknown baseline, or a group size that the pool cannot fill.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> group_errors(pool, ["norm-weighted"], [2, 4]).shape
    (1, 2, 1)
    """
    names = [ALIASES.get(name, name) for name in baselines]
    allowed = ("vanilla", "grpo", *WEIGHTED)
    for name in names:
        if name not in allowed:
            raise InputError(f"baseline {name!r} is not one of {', '.join(allowed)}")
    sizes = [integer("group size", size) for size in group_sizes]
    if not names or not sizes:
        raise InputError("at least one baseline and one group size are needed")
    if min(sizes) < 2 and set(names) - {"vanilla"}:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    if max(sizes) > pool.rollouts:
        raise InputError(
            f"group size is {max(sizes)}: groups are drawn from the pool, which has "
            f"{pool.rollouts} rollouts a prompt; sample more, or take smaller groups"
        )
    if pool.gram is None:
        raise InputError(
            "this pool has no Gram matrices, of which errors of random groups are made: score it "
            "with memory for all completions of a prompt at once, or ask for baselines without weights"
        )
    rounds = integer("permutations", permutations)
    orders = _streams(pool, integer("seed", seed, 0), rounds)
    sources = {
        "norm-weighted": pool.squared_norms,
        "length-weighted": pool.lengths,
        "token-weighted": pool.token_proxy,
    }
    total = np.zeros((len(names), len(sizes), pool.size))
    step = max(1, _ENTRIES // pool.rollouts**2)
    for start in range(0, pool.size, step):
        part = np.arange(start, min(start + step, pool.size))
        for order in orders[:, part]:
            gram = pool.gram[part[:, None, None], order[:, :, None], order[:, None, :]]
            rewards = pool.rewards[part[:, None], order]
            weights = {
                name: sources[name][part[:, None], order] for name in names if name in WEIGHTED
            }
            for place, size in enumerate(sizes):
                groups = pool.rollouts // size
                used, shape = groups * size, (len(part), groups, size)
                blocks = np.einsum(
                    "pgigj->pgij",
                    gram[:, :used, :used].reshape(len(part), groups, size, groups, size),
                )
                z = rewards[:, :used].reshape(shape)
                own = {name: w[:, :used].reshape(shape) for name, w in weights.items()}
                stack = np.stack([_group_advantages(name, z, own) for name in names], axis=-1)
                squares = (stack * (blocks @ stack)).sum(axis=2).mean(axis=1) / size**2
                total[:, place, part] += squares.T
    return (
        total / rounds
        - np.stack([_pair_gradient_sq(pool, name, sources) for name in names])[:, None]
    )


def _pair_gradient_sq(pool: ScoredPool, name: str, sources: dict[str, Array]) -> Array:
    """‖g‖² of each prompt from pairs i ≠ j, centred by the baseline of the others, (P,)."""
    if name == "grpo":
        return prompt_moments(pool).gradient_sq
    z, count = pool.rewards, pool.rollouts
    assert pool.gram is not None
    total = np.zeros(pool.size)
    for i in range(count):
        rest = np.delete(np.arange(count), i)
        centre: Array | float = 0.0
        if name in WEIGHTED:
            # Of rest each j has the weighted mean of those that are neither i nor j.
            centre = _leave_out_ratio(sources[name][:, rest], z[:, rest])
        total += (pool.gram[:, i, rest] * (z[:, [i]] - centre) * (z[:, rest] - centre)).sum(axis=1)
    return total / (count * (count - 1))


def table_errors(pool: ScoredPool, table: CountTable) -> Array:
    """E‖ĝ‖² - ‖g‖² of an unbiased table by counts at each prompt, from all groups of the pool, (P,).

    With m ~ Hypergeometric(N-1, ·, G-1) of the pool's successes beside one rollout and
    l ~ Hypergeometric(N-2, ·, G-2) beside two, the mean of G² ‖ĝ‖² over all groups is

        G/N Σᵢ Kᵢᵢ E Aᵢ(m)² + G(G-1)/(N(N-1)) Σ_{i≠j} Kᵢⱼ E Aᵢ(l) Aⱼ(l) :

    a complete U-statistic, unbiased.

    Arguments:
        pool: of N rollouts, rewards 0 and 1.
        table: of groups of at most N, a leave-one-out baseline.

    Raises:
        InputError: other rewards, a group that the pool cannot fill, or a table whose mean is no
            gradient.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> table_errors(pool, count_table("grpo", 2)).round(12).tolist()
    [0.375]
    """
    won, lost = table.successes, table.failures
    size, count, z = table.group_size, pool.rollouts, pool.rewards
    if not ((z == 0) | (z == 1)).all():
        raise InputError("a table by counts takes rewards that are 0 or 1: this pool has others")
    if size > count:
        raise InputError(
            f"group size is {size}: groups are drawn from the pool, which has {count} rollouts a "
            "prompt; sample more, or take smaller groups"
        )
    if not table.unbiased:
        raise InputError(
            "the table is biased: only errors of leave-one-out baselines are estimated"
        )

    def beside(excluded: int, own: int, values: Array) -> Array:
        """E of values(0), ... of the successes beside some rollouts, ``own`` of them successes, (P,)."""
        drawn, others = size - excluded, count - excluded
        left = np.clip(z.sum(axis=1) - own, 0, others)
        chances = hypergeom.pmf(np.arange(drawn + 1), others, left[:, None], drawn)
        return np.asarray(chances @ values)

    norms, sums, mean = pool.squared_norms, pool.sums, z.mean(axis=1)
    alone = (norms * z).sum(axis=1) * beside(1, 1, won[1:] ** 2)
    alone += (norms * (1 - z)).sum(axis=1) * beside(1, 0, lost[:-1] ** 2)
    if size > 1:
        # z = z̃ + z̄ and 1 - z = (1 - z̄) - z̃: their sums are combinations of those of z̃ and 1.
        of_won, of_lost = ([mean, 1 + 0 * mean], [1 - mean, -1 + 0 * mean])

        def product(first: Any, second: Any) -> Array:
            return np.einsum("ip,pij,jp->p", first, sums[:, :2, :2], second)

        both = product(of_won, of_won) - (norms * z).sum(axis=1)
        none = product(of_lost, of_lost) - (norms * (1 - z)).sum(axis=1)
        pairs = both * beside(2, 2, won[2:] ** 2) + none * beside(2, 0, lost[:-2] ** 2)
        pairs += 2 * product(of_won, of_lost) * beside(2, 1, won[1:-1] * lost[1:-1])
        alone += pairs * (size - 1) / (count - 1)
    return alone / (count * size) - prompt_moments(pool).gradient_sq


def _learned_errors(pool: ScoredPool, moments: PromptMoments, group_size: int) -> Array:
    """Those of the best table, each part's made of the other parts' prompts, (P,)."""
    if pool.size < 2:
        raise InputError("the best table is learned on other prompts: this pool has one")
    order = sorted(range(pool.size), key=lambda x: _address(pool.prompts[x]))
    out = np.empty(pool.size)
    for judged in np.array_split(np.array(order), min(_PARTS, pool.size)):
        others = np.ones(pool.size, dtype=bool)
        others[judged] = False
        table = best_table(_as_moments(moments, others), group_size)
        out[judged] = table_errors(pool.select_prompts(judged.tolist()), table)
    return out


def _address(name: str) -> int:
    """A number of a prompt's name that does not depend on its place in a file."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _as_moments(found: PromptMoments, chosen: NDArray[np.bool_]) -> Moments:
    """Some prompts' estimates as moments of a problem: shares of successes as pass rates."""
    value, trace = found.value[chosen], found.fisher_trace[chosen]
    return Moments(
        context_probs=np.full(len(value), 1 / len(value)),
        value=value,
        reward_variance=value * (1 - value),
        fisher_trace=trace,
        norm_advantage=found.norm_reward[chosen] - value * trace,
        norm_squared_advantage=np.maximum(found.norm_squared_advantage[chosen], 0.0),
        gradient_sq=np.maximum(found.gradient_sq[chosen], 0.0),
        mean_gradient_sq=0.0,
        reward_range=(0.0, 1.0),
    )


def _names(baselines: Sequence[str], constant: float | None) -> list[str]:
    if isinstance(baselines, str):
        raise InputError(f"baselines are {baselines!r}: give a list of names")
    names = [ALIASES.get(name, name) for name in baselines]
    for name in names:
        if name in (*BASELINES, "constant"):
            continue
        family = RECORDS.get(name.partition(":")[0])
        if family is None or not family.by_count:
            raise InputError(
                f"baseline {name!r} is unknown: choose one of {', '.join([*BASELINES, 'constant'])}, "
                f"or a leave-one-out table such as {', '.join(TABLES)}"
            )
    if not names:
        raise InputError("no baselines are given: at least one is needed")
    if (constant is not None) != ("constant" in names):
        raise InputError("a constant is given with, and only with, the baseline constant")
    return names


def _errors(
    pool: ScoredPool,
    moments: PromptMoments,
    names: Sequence[str],
    sizes: Sequence[int],
    constant: float | None,
    method: str,
    permutations: int,
    seed: int,
) -> Array:
    """The conditional MSE at each prompt, (baselines, group sizes, P)."""
    if method not in _METHODS:
        raise InputError(f"minimum_variance is {method!r}: choose one of {', '.join(_METHODS)}")
    group = np.array(sizes, dtype=np.float64)[:, None]
    if "grpo" in names and min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    weighted = [name for name in dict.fromkeys(names) if name in WEIGHTED]
    drawn = {}
    if weighted:
        found = group_errors(pool, weighted, sizes, permutations=permutations, seed=seed)
        drawn = dict(zip(weighted, found, strict=True))
    out = np.empty((len(names), len(sizes), pool.size))
    for i, name in enumerate(names):
        if name in drawn:
            out[i] = drawn[name]
            continue
        if name not in (*BASELINES, "constant"):
            learned = bool(parse(name)[0].needs)
            for place, size in enumerate(sizes):
                out[i, place] = (
                    _learned_errors(pool, moments, size)
                    if learned
                    else table_errors(pool, count_table(name, size))
                )
            continue
        if name == "vanilla":
            square = moments.norm_squared_reward
        elif name == "constant":
            square = moments.centred(float(finite_array("constant", constant, 0)))  # type: ignore[arg-type]
        elif name == "minimum-variance":
            square = _at_best_constant(pool, method)
        else:
            square = moments.norm_squared_advantage
        out[i] = (square - moments.gradient_sq) / group
        if name == "grpo":
            out[i] += (moments.variance_trace + moments.gradient_sq) / (group * (group - 1))
    return out


def _sizes(group_sizes: Sequence[int]) -> list[int]:
    sizes = [
        integer("group size", size) for size in np.atleast_1d(np.asarray(group_sizes)).tolist()
    ]
    if not sizes:
        raise InputError("no group sizes are given: at least one is needed")
    return sizes


def _scale(pool: ScoredPool, design: str, batch_size: int) -> float:
    if design not in DESIGNS:
        raise InputError(f"design {design!r} is unknown: choose one of {', '.join(DESIGNS)}")
    batch = integer("batch size", batch_size)
    if design != "iid" and batch != 1:
        raise InputError(f"batch size is {batch}: the design {design!r} takes none")
    return {"prompt": 1.0, "fixed": 1 / pool.size, "iid": 1 / batch}[design]


def curves(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("vanilla", "grpo", "oracle", "minimum-variance"),
    *,
    design: str = "prompt",
    batch_size: int = 1,
    constant: float | None = None,
    minimum_variance: str = "jackknife",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """The gradient MSE of every baseline at every group size, with 95% intervals.

    Arguments:
        pool: of N rollouts a prompt.
        group_sizes: G, at least 1; 2 for grpo; from 2 to N for weighted baselines; to N for tables.
        baselines: of :data:`BASELINES`, constant, and leave-one-out tables by name: :data:`TABLES`.
        design: prompt, the mean over prompts of the error given the prompt; fixed, that over P, the
            error of the mean gradient of these P prompts (Figure 4); iid, B prompts drawn anew, so
            that the spread between prompts counts (Proposition 3, minibatch).
        batch_size: B, for iid only.
        constant: b, for the baseline constant only.
        minimum_variance: how the error at b* is found, a ratio of moments: plug-in is too low by a
            term of order 1/N; jackknife takes that term off; split takes b* from the other rollouts,
            which is the exact error of a b* so learned and above the least.
        permutations, seed: for weighted baselines, see :func:`group_errors`.

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
    names, sizes = _names(baselines, constant), _sizes(group_sizes)
    scale = _scale(pool, design, batch_size)
    moments = prompt_moments(pool)
    errors = _errors(
        pool, moments, names, sizes, constant, minimum_variance, permutations, seed
    ).reshape(-1, pool.size)
    if design == "iid":
        found = means_and_spread(pool, moments, errors.T).apply(
            lambda each: each[..., :-1] + each[..., -1:]
        )
    else:
        found = means(errors.T)
    low, high = found.interval()
    frame = pd.DataFrame(
        {
            "baseline": np.repeat(names, len(sizes)),
            "group_size": np.tile(sizes, len(names)),
            "mse": found.full * scale,
            "low": low * scale,
            "high": high * scale,
            "se": found.se * scale,
        }
    )
    frame["biased"] = frame["baseline"] == "minimum-variance"
    return frame


def ordering(
    pool: ScoredPool,
    group_size: int,
    baselines: Sequence[str] = _PAPER,
    *,
    constant: float | None = None,
    minimum_variance: str = "jackknife",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """Which baseline has the larger MSE at a group size, pair by pair, by paired differences.

    The spread between prompts cancels, so the answer is the same in every design.

    Arguments:
        as for :func:`curves`.

    Returns:
        a row for each pair: first, second, difference (of the mean errors given the prompt, first
        less second), low, high, se, larger (the name, tie or open), paper (what the paper's
        reading vanilla > grpo > oracle says is larger; none where it says nothing) and reading
        (holds, fails, tie, open or none).

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> ordering(pool, 4)[["first", "second", "larger", "paper"]].values.tolist()[0]
    ['vanilla', 'grpo', 'open', 'vanilla']
    """
    names = _names(baselines, constant)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"baselines are {names}: at least two different ones are needed")
    sizes = [integer("group size", group_size)]
    moments = prompt_moments(pool)
    errors = _errors(pool, moments, names, sizes, constant, minimum_variance, permutations, seed)
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    found = means(np.stack([errors[i, 0] - errors[j, 0] for i, j in pairs], axis=1))
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


def oracle_ratio(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    *,
    design: str = "prompt",
    permutations: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """MSE of grpo over MSE of the oracle (Corollary 4, oracle), predicted and from groups.

    Predicted from moments, 1 + (φ + ‖g‖²) / ((G-1)(τ - ‖g‖²)), in the design iid
    1 + c3 / ((G-1)(G c1 + c2)); and measured, with grpo's error taken from random groups of the pool,
    which does not use Theorem 2. Both are ratios of unbiased estimates, so biased by a term of
    order 1/P. Intervals are of the logarithm.

    Arguments:
        group_sizes: G >= 2; the measured ratio is NaN above N, and of a pool without ``gram``.
        design: prompt (fixed is the same) or iid.
        permutations, seed: see :func:`group_errors`.

    Returns:
        a row for each group size: group_size, predicted, low, high, measured, measured_low,
        measured_high, sample_price (G/(G-1), what it is where one sample is the price).
    """
    sizes = _sizes(group_sizes)
    if min(sizes) < 2:
        raise InputError(f"group size is {min(sizes)}: leave-one-out needs at least 2")
    _scale(pool, design, 1)
    moments = prompt_moments(pool)
    both = _errors(pool, moments, ["grpo", "oracle"], sizes, None, "plug-in", 1, seed)
    inside = [size for size in sizes if size <= pool.rollouts and pool.gram is not None]
    drawn = np.full((len(sizes), pool.size), np.nan)
    if inside:
        places = [size in inside for size in sizes]
        drawn[places] = group_errors(pool, ["grpo"], inside, permutations=permutations, seed=seed)[
            0
        ]
    columns = np.concatenate([both[0], drawn, both[1]]).T
    if design == "iid":
        found = means_and_spread(pool, moments, columns).apply(
            lambda each: each[..., :-1] + each[..., -1:]
        )
    else:
        found = means(columns)

    def logs(given: Array) -> Array:
        top, measured, below = np.split(given, 3, axis=-1)
        whole = np.concatenate([top, measured], axis=-1)
        under = np.concatenate([below, below], axis=-1)
        good = (whole > 0) & (under > 0)
        return np.where(
            good, np.log(np.where(good, whole, 1.0)) - np.log(np.where(good, under, 1.0)), np.nan
        )

    ratio = found.apply(logs)
    low, high = ratio.interval()
    known = np.isfinite(ratio.full)
    middle = np.where(known, np.exp(np.where(known, ratio.full, 0.0)), np.nan)
    ends = [np.where(known, np.exp(np.where(known, end, 0.0)), np.nan) for end in (low, high)]
    count = len(sizes)
    return pd.DataFrame(
        {
            "group_size": sizes,
            "predicted": middle[:count],
            "low": ends[0][:count],
            "high": ends[1][:count],
            "measured": middle[count:],
            "measured_low": ends[0][count:],
            "measured_high": ends[1][count:],
            "sample_price": [size / (size - 1) for size in sizes],
        }
    )


def zero_signal(rewards: ScoredPool | ArrayLike, group_sizes: Sequence[int]) -> pd.DataFrame:
    """The share of groups whose rewards are all equal, so that they teach nothing.

    Σ_v C(n_v, G)/C(N, G) for prompts with n_v rewards equal to v: unbiased, and it never rises with G.
    Of groups larger than N nothing is unbiased, and no share is given: it is at most that at G = N,
    whose upper end is ``high`` there.

    Arguments:
        rewards: a scored pool, or rewards alone (P, N).
        group_sizes: G >= 1.

    Returns:
        a row for each group size: group_size, share, low, high, se, biased (whether G > N: share
        and se are NaN).

    >>> zero_signal([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], [2, 4, 8]).share.tolist()
    [0.75, 0.5, nan]
    """
    sizes = _sizes(group_sizes)
    table = (
        rewards.rewards if isinstance(rewards, ScoredPool) else finite_array("rewards", rewards, 2)
    )
    count = table.shape[1]
    # n of the value of each rollout; summing over rollouts counts a value n times.
    same = (table[:, :, None] == table[:, None, :]).sum(axis=2).astype(np.float64)
    shares = np.empty((len(table), len(sizes)))
    for place, size in enumerate(np.minimum(sizes, count)):
        enough = same >= size
        many = np.where(enough, same, size)
        log = gammaln(many + 1) - gammaln(many - size + 1)
        log -= gammaln(count + 1) - gammaln(count - size + 1)
        shares[:, place] = np.where(enough, np.exp(log) / same, 0.0).sum(axis=1)
    found = means(shares)
    low, high = found.interval()
    beyond = np.array(sizes) > count
    return pd.DataFrame(
        {
            "group_size": sizes,
            "share": np.where(beyond, np.nan, found.full),
            "low": np.where(beyond, 0.0, np.clip(low, 0.0, 1.0)),
            "high": np.clip(high, 0.0, 1.0),
            "se": np.where(beyond, np.nan, found.se),
            "biased": beyond,
        }
    )
