"""Every column of a pool's tables, from its prompts' moments: by loops over prompts and pairs of them."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from ustat_pg.catalogue.choice import Direction
from ustat_pg.inference import Means, log_ratio, means, norm_interval, ratio
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.pool.moments import prompt_moments, share_interval
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.pool.tables import group_moments

PROMPTS, ROLLOUTS, SIZES = 9, 6, [2, 4]
NAMES = ["grpo", "maxrl", "group-mean", "vanilla"]
LIKELY = 0.3
"""Looks at which a signal whose interval is above 0 is likely there."""


def pool_of(seed, strength, looks=1, graded=False):
    rng = np.random.default_rng(seed)
    rewards = (rng.random((PROMPTS, ROLLOUTS)) < rng.uniform(0.1, 0.9, (PROMPTS, 1))).astype(float)
    scores = rng.normal(size=(PROMPTS, ROLLOUTS, 3))
    scores[..., 0] += strength * (rewards - rewards.mean(axis=1, keepdims=True))
    if graded:
        rewards = rewards + rng.integers(0, 3, rewards.shape) / 4
    return replace(ScoredPool.from_scores(rewards, scores), config={"looks": looks}), scores


def deleted(statistic, looks=1):
    """Numbers of all prompts, and without each of them."""
    every = list(range(PROMPTS))
    without = [statistic(every[:x] + every[x + 1 :]) for x in every]
    return Means(np.array(statistic(every)), np.array(without), looks)


def product(one, other, chosen):
    """The mean inner product of different prompts."""
    return np.mean([one[x] @ other[y] for x, y in itertools.permutations(chosen, 2)])


def vectors_of(pool, group):
    """What is unbiased for E ĝ of each prompt."""
    assert group.vectors is None
    return [factor * one for factor, one in zip(group.factor, pool.gradients, strict=True)]


def groups_of(pool):
    """The moments of each estimator at each group size; test_tables.py has them."""
    rows = group_moments(pool, prompt_moments(pool), NAMES, SIZES)
    return {
        (name, size): group
        for name, row in zip(NAMES, rows, strict=True)
        for size, group in zip(SIZES, row, strict=True)
    }


def noise_and_signal(pool, group, times=1.0):
    own = vectors_of(pool, group)

    def both(chosen):
        signal = product(own, own, chosen)
        return [times * (np.mean(group.second[chosen]) - signal), signal]

    return deleted(both, pool.looks), np.array(own)


def over(pool, one, other):
    """Noise over signal over another's; ends are known where both signals are likely there."""
    found = log_ratio(one[0], other[0])
    likely = [norm_interval(own, pool.looks * LIKELY)[0] > 0 for _, own in (one, other)]
    ends = found.interval if all(likely) or found.low == found.high else (0.0, math.inf)
    return found.value, *ends


def close(found, wanted, what=None):
    np.testing.assert_allclose(
        np.array(found, dtype=float), np.array(wanted, dtype=float), rtol=1e-9, err_msg=str(what)
    )


POOLS = [(4, 0.8, 1), (36, 0.8, 1), (1, 2.0, 3), (2, 0.3, 1), (33, 0.8, 1)]
"""Signals of grpo and of MaxRL are likely, of one of them, and of none; and some are below 0."""


@pytest.mark.parametrize("drawn", POOLS)
def test_noise_over_signal(drawn):
    pool, _ = pool_of(*drawn)
    groups = groups_of(pool)
    frame = estimates.noise_to_signal(pool, SIZES, NAMES).set_index(["estimator", "group_size"])
    asked = [(name, size) for name in NAMES for size in SIZES]
    rows = estimates.compared(pool, asked)
    for (name, size), row in zip(asked, rows, strict=True):
        found = noise_and_signal(pool, groups[name, size])
        both, own = found
        known, signal = frame.loc[(name, size)], norm_interval(own, pool.looks)
        close(known[["noise", "signal", "noise_se", "signal_se"]], [*both.full, *both.se], name)
        value = ratio(both, signal)
        wanted = value.value if both.full[1] > 0 else math.nan
        close(known[["ratio", "low", "high"]], [wanted, *value.interval], name)
        relative = over(pool, found, noise_and_signal(pool, groups["grpo", size]))
        close(known[["relative", "relative_low", "relative_high"]], relative, name)
        # In outputs: times G, over the first pair.
        times = noise_and_signal(pool, groups[name, size], size)
        first = noise_and_signal(pool, groups[asked[0]], asked[0][1])
        close(row, [wanted * size, *over(pool, times, first)], name)


def test_signals_are_likely_of_each_of_these_of_one_or_of_none():
    seen = set()
    for drawn in POOLS:
        pool, _ = pool_of(*drawn)
        groups = groups_of(pool)
        likely = [
            norm_interval(np.array(vectors_of(pool, groups[name, 4])), pool.looks * LIKELY)[0] > 0
            for name in ("grpo", "maxrl")
        ]
        seen.add(tuple(likely))
    assert seen == set(itertools.product([False, True], repeat=2))


@pytest.mark.parametrize("drawn", [*POOLS, (3, 6.0, 1), (5, 6.0, 2)])
@pytest.mark.parametrize("name", ["maxrl", "group-mean"])
def test_directions(drawn, name):
    pool, _ = pool_of(*drawn)
    group = groups_of(pool)[name, 4]
    own, gradient = vectors_of(pool, group), pool.gradients

    def cosine(chosen):
        along, mine, other = (
            product(*two, chosen) for two in ((own, gradient), (own, own), (gradient, gradient))
        )
        return [along / math.sqrt(mine * other) if min(mine, other) > 0 else math.nan]

    every = range(PROMPTS)
    angle = deleted(cosine, pool.looks)
    found = estimates.direction(pool, name, 4)
    vectors = [np.array(each) for each in (own, gradient)]
    if min(norm_interval(each, pool.looks)[0] for each in vectors) <= 0:
        # Neither length may be 0.
        assert found == Direction(None, None, -1.0, 1.0)
        return
    scale = product(own, gradient, every) / product(gradient, gradient, every)
    assert found.scale is not None
    # What it is below 1 is as skewed as a square.
    below = deleted(lambda chosen: [-cosine(chosen)[0]], pool.looks).estimate(0, math.sqrt(8))
    ends = -np.array([below.high, below.low])
    if below.se <= 1e-12:
        ends[:] = angle.full[0]
    wanted = [scale, *np.clip([angle.full[0], *ends], -1, 1)]
    close([found.scale, found.cosine, found.low, found.high], wanted)


def same(found, wanted, what):
    close(
        [found.value, found.se, *found.interval], [wanted.value, wanted.se, *wanted.interval], what
    )


@pytest.mark.parametrize("drawn", [*POOLS[:4], (0, 2.0, 1)])
def test_constants(drawn):
    pool, _ = pool_of(*drawn)
    moments, sketches = prompt_moments(pool), pool.gradients

    def numbers(chosen):
        square, vanilla, tau, phi = (
            np.mean(getattr(moments, name)[chosen])
            for name in (
                "gradient_sq", "norm_squared_reward", "norm_squared_advantage", "variance_trace"
            )
        )  # fmt: skip
        signal = product(sketches, sketches, chosen)
        return [square - signal, tau - square, phi + square, vanilla - square, signal]

    parts, found = deleted(numbers, pool.looks), estimates.constants(pool)
    for place, name in enumerate(("c1", "c2", "c3", "vanilla")):
        same(getattr(found, name), parts.estimate(place), name)
    signal = norm_interval(sketches, pool.looks)
    ends = dict(zip(("low", "high"), signal, strict=True))
    same(found.signal, replace(parts.estimate(4), **ends), "signal")
    star = ratio(parts.apply(lambda m: m[..., [2, 0]]))
    known = 0 < star.value < math.inf
    wanted = [1 + math.sqrt(end) for end in (max(star.value, 0), *star.interval)]
    se = star.se / (2 * math.sqrt(star.value)) if star.value > 0 else math.nan
    close([found.g_star.value, *found.g_star.interval, found.g_star.se], [*wanted, se])

    def noise(m):
        c1, c2, c3, _, strength = np.moveaxis(m, -1, 0)
        root = 2 * np.sqrt(np.maximum(c1, 0) * np.maximum(c3, 0))
        return np.stack([c1 + c2 + root, strength], axis=-1)

    crit = ratio(parts.apply(noise), signal)
    least = noise(np.maximum(parts.full, 0))[0]
    value = least / parts.full[4] if parts.full[4] > 0 else crit.value
    same(found.k_crit, replace(crit, value=value), "k_crit")
    assert found.clipped == tuple(
        name
        for name, each in zip(("c1", "c2", "c3", "vanilla"), parts.full, strict=False)
        if each < 0
    )
    assert known == (parts.full[0] > 0 and parts.full[2] > 0)


@pytest.mark.parametrize("drawn", [(0, 1.5, 1), (1, 0.3, 3)])
def test_errors_and_their_order(drawn):
    pool, _ = pool_of(*drawn)
    groups, gradient_sq = groups_of(pool), prompt_moments(pool).gradient_sq
    frame = estimates.curves(pool, SIZES, NAMES).set_index(["estimator", "group_size"])
    errors = {
        asked: group.second - 2 * group.cross + gradient_sq for asked, group in groups.items()
    }
    for asked, error in errors.items():
        mean = means(error[:, None], pool.looks)
        (low,), (high,) = mean.interval()
        wanted = [error.mean(), low, high, error.std(ddof=1) / 3, 0, 0]
        close(frame.loc[asked][["mse", "low", "high", "se", "biased", "own_se"]], wanted, asked)
    best = estimates.curves(pool, SIZES, ["minimum-variance"])
    assert best["biased"].all()
    ordered = estimates.ordering(pool, 4, ["grpo", "vanilla"]).iloc[0]
    mean = means((errors["grpo", 4] - errors["vanilla", 4])[:, None], pool.looks)
    (low,), (high,) = mean.interval()
    wanted = [mean.full[0], low, high, mean.se[0]]
    close(ordered[["difference", "low", "high", "se"]], wanted)
    larger = "grpo" if low > 0 else "vanilla" if high < 0 else "open"
    assert ordered["larger"] == larger
    assert ordered["paper"] == "vanilla"
    assert ordered["reading"] == {"grpo": "fails", "vanilla": "holds"}.get(larger, larger)
    costs = estimates.oracle_ratio(pool, SIZES)
    oracle = group_moments(pool, prompt_moments(pool), ["oracle"], SIZES)[0]
    for size, below, row in zip(SIZES, oracle, costs.itertuples(index=False), strict=True):
        lower = below.second - 2 * below.cross + gradient_sq
        both = means(np.stack([errors["grpo", size], lower], axis=1), pool.looks)
        value = ratio(both)
        close(row, [size, value.value if both.full[1] > 0 else math.nan, *value.interval])


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("looks", [1, 3])
def test_a_pool_in_a_few_numbers(graded, looks):
    """From rewards and scores themselves: every mean is one over rollouts that differ."""
    pool, scores = pool_of(3, 1.0, looks, graded)
    # One prompt is solved by all: it is not mixed, though a baseline gains much there.
    z = np.where(np.arange(PROMPTS)[:, None] == 0, 1.0, pool.rewards)
    pool = replace(ScoredPool.from_scores(z, scores), config=pool.config)
    norms = np.square(scores).sum(axis=-1)
    triples = list(itertools.permutations(range(ROLLOUTS), 3))

    def numbers(x):
        r, q, s = z[x], norms[x], scores[x]
        tau = np.mean([q[k] * (r[k] - r[i]) * (r[k] - r[j]) for i, j, k in triples])
        others = (r.sum() - r) / (ROLLOUTS - 1)
        rest = [
            (s[i] @ s[j]) * np.prod([r[n] - np.delete(r, [i, j]).mean() for n in (i, j)])
            for i, j in itertools.permutations(range(ROLLOUTS), 2)
        ]
        mixed = np.ptp(r) > 0
        better = mixed and np.mean(q * r**2) > tau
        moments = r.mean(), r.var(ddof=1), q.mean(), np.mean(rest), np.mean(q * r)
        return *moments, better, mixed, np.mean(q * (r - others)), q.var(ddof=1)

    table = np.array([numbers(x) for x in range(PROMPTS)])

    def wanted(chosen):
        value, variance, trace, gradient, reward, better, mixed, apart, spread = table[chosen].mean(
            axis=0
        )
        correlation = apart / math.sqrt(spread * variance)
        few = [value, variance, trace, gradient, correlation, reward / trace, apart / trace]
        return [*few, mixed, better / mixed]

    names = ["pass_rate", "reward_variance", "fisher_trace", "gradient_sq", "correlation"]
    names += ["optimal_baseline", "best_less_value", "mixed", "oracle_beats_vanilla"]
    found, known = estimates.summary(pool).set_index("name"), deleted(wanted, looks)
    assert found.index.tolist() == names
    ends, shares = known.interval(), share_interval(known)
    for place, name in enumerate(names):
        share = name in ("mixed", "oracle_beats_vanilla") or (name == "pass_rate" and not graded)
        low, high = ((shares if share else ends)[side][place] for side in (0, 1))
        row = found.loc[name]
        close(
            row[["value", "low", "high", "se"]],
            [known.full[place], low, high, known.se[place]],
            name,
        )
        ratios = ("correlation", "optimal_baseline", "best_less_value", "oracle_beats_vanilla")
        assert row["biased"] == (name in ratios)
