"""Intervals of pools and of the meter from problems whose moments are known, by the benchmark's own cases."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.coverage import CASES, Meter, Pool, Turns, drawn, problem
from ustat_pg.llm.advice.commands import errors_of_pool
from ustat_pg.llm.pool.estimates import constants, noise_to_signal, summary
from ustat_pg.llm.pool.scored import ScoredPool

TIMES = 120


@pytest.mark.parametrize(
    ("case", "names"),
    [
        # Student's law has 65 to 80% of c1 to c3 here, and 78% of ‖g‖².
        (Pool("rare", 60, 16), ["c1", "c2", "c3", "‖g‖²", "silent, G = 2", "K_crit"]),
        (Pool("uneven", 30, 8), ["c1", "c3", "‖g‖²", "K_crit", "grpo noise", "G*", "grpo/oracle"]),
        (Pool("iris", 40, 8), ["‖g‖²", "std/grpo", "maxrl/grpo", "maxrl noise", "K_crit"]),
        # As 120 prompts they have 73% of ‖g‖², 78% of c3.
        (Pool("usual", 30, 8, steps=4), ["c1", "c2", "c3", "‖g‖²", "K_crit", "std noise", "MSE"]),
        # Without the floor of a heavy tail 12% of c2 are above.
        (Pool("usual", 30, 8, graded="lognormal"), ["c1", "c2", "c3", "MSE", "G*", "grpo/oracle"]),
        (Pool("solved-98", 60, 8), ["c1", "c3", "E‖g(X)‖²", "grpo/oracle", "silent, G = 8"]),
        (Meter("rare", 12, 4, 8), ["c2", "c3", "K_crit"]),
        # Of the last, noise and lengths by one episode's influence alone are below in 9 to 17%.
        (Turns("rare", 40, 8, 2), ["to-go: signal", "to-go: along", "summed: noise"]),
        (
            Turns("usual", 1, 16, 2),
            ["to-go: noise", "to-go: signal", "summed: along", "to-go: mse"],
        ),
        (Meter("t of 3 degrees", 50, 8, 4, tails=3.0), ["signal", "K_crit"]),
    ],
    ids=str,
)
def test_few_intervals_miss(case, names):
    """7% of misses, 4% on either side, are allowed: more than these bounds have a chance below 1e-3."""
    found = [case.intervals(np.random.default_rng([8, seed])) for seed in range(TIMES)]
    for name, true in case.truths().items():
        if name in names:
            ends = np.array([each[name][0] for each in found])
            outside = np.array([(ends[:, 0] > true).sum(), (ends[:, 1] < true).sum()])
            assert outside.max() <= binom.isf(1e-3, TIMES, 0.04), (name, outside)
            assert outside.sum() <= binom.isf(1e-3, TIMES, 0.07), (name, outside)


def test_usual_cases_are_finite_and_no_wider_than_is_said():
    case = next(case for case in CASES if isinstance(case, Pool) and case.usual)
    found = [case.intervals(np.random.default_rng([9, seed])) for seed in range(40)]
    for name in ("c1", "c2", "c3", "MSE", "silent, G = 2"):
        ends, halves = (np.array([each[name][part] for each in found]) for part in (0, 1))
        finite = np.isfinite(ends).all(axis=1)
        assert finite.mean() >= 0.9
        assert np.median(np.ptp(ends[finite], axis=1)) <= 1.3 * 2 * np.median(halves)


def pool_of(name, prompts, seed):
    return ScoredPool.from_scores(*drawn(name, prompts, 8, np.random.default_rng(seed)))


def test_a_pool_says_what_few_prompts_carry():
    """Of 20 prompts whose rewards are rare, and of none of 50 usual ones."""
    said = [constants(pool_of("rare", 20, seed)).not_known for seed in range(20)]
    assert sum("c1" in each for each in said) >= 12
    assert not any(constants(pool_of("usual", 50, seed)).not_known.get("c3") for seed in range(20))
    words = [each["c1"] for each in said if "c1" in each]
    assert {"of 20 prompts carry" in each for each in words} == {True, False}
    assert sum("with at least two rewards different from" in each for each in words) >= 10
    seed = next(seed for seed, each in enumerate(said) if "c1" in each)
    pool = pool_of("rare", 20, seed)
    estimate, page = constants(pool), errors_of_pool(pool, [2, 4])
    assert estimate.c1.high == np.inf
    assert estimate.g_star.low == 1
    assert page.to_dict()["not_known"] == estimate.not_known
    assert f"The upper end of c1 is not known: {estimate.not_known['c1']}." in str(page)
    assert "not known" in str(page).split("95% from")[1]


def test_shares_of_a_summary_are_shares():
    assert problem("usual").contexts == 200
    for seed in range(10):
        table = summary(pool_of("rare", 20, seed)).set_index("name")
        shares = table.loc[["mixed", "oracle_beats_vanilla", "pass_rate"], ["low", "high"]]
        assert ((shares >= 0) & (shares <= 1) | shares.isna()).all(axis=None)


def test_a_ratio_of_baselines_needs_less_signal_than_the_noise_of_one():
    """Errors of two signals are nearly the same, and leave their ratio: it has ends where both are likely."""
    both = [
        noise_to_signal(pool_of("mild", 60, seed), [4], ["grpo", "std"]).iloc[1]
        for seed in range(30)
    ]
    assert any(np.isinf(row.high) and np.isfinite(row.relative_high) for row in both)
    rare = noise_to_signal(pool_of("rare", 20, 0), [4], ["grpo", "std"]).iloc[1]
    assert np.isinf(rare.relative_high)
