"""A pool's advice in words: each sentence has its numbers, where there are any."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.support.commands import strict
from ustat_pg.llm.advice.advise import advise_pool
from ustat_pg.llm.advice.commands import errors_of_pool
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.printing import ends
from ustat_pg.llm.pool.scored import ScoredPool


def made(prompts=80, rollouts=8, seed=2):
    rng = np.random.default_rng(seed)
    rates = rng.beta(1.0, 1.0, size=(prompts, 1))
    rewards = (rng.random((prompts, rollouts)) < rates).astype(float)
    # All prompts push along one direction, each along another of its own too.
    own = rng.normal(size=(prompts, 1, 6))
    scores = rng.normal(size=(prompts, rollouts, 6))
    scores += (rewards - rates)[..., None] * (1.2 + 0.8 * own)
    return ScoredPool.from_scores(rewards, scores)


ADVICE = advise_pool(made(), 64)
COSTS = {"group_size": 8, "mse_over_oracle": 1.131, "low": 1.102, "high": 1.158}


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ({}, "adds 13.1% to the error at one prompt with G = 4 (95%: 10.2% to 15.8%)."),
        (
            {"low": None},
            "adds 13.1% to the error at one prompt with G = 4 (its error is not known).",
        ),
        ({"high": None}, "13.1% to the error at one prompt with G = 4 (its error is not known)."),
        ({"low": 0.0}, "13.1% to the error at one prompt with G = 4 (its error is not known)."),
        ({"mse_over_oracle": None}, "does not show the cost of not knowing the value with G = 4."),
    ],
)
def test_what_not_knowing_the_value_costs(cost, said):
    advice = replace(ADVICE, decision=replace(ADVICE.decision, group_size=4))
    vars(advice)["critic_cost"] = COSTS | cost
    assert said in str(advice)


@pytest.mark.parametrize(
    ("worst", "known", "settled"),
    [(1.049, True, True), (1.05, True, True), (1.051, True, False), (1.0, False, False)],
)
def test_what_settles_a_question(worst, known, settled):
    found = replace(ADVICE.decision, worst=worst, known=known)
    assert found.settles(0.05) == settled
    line, loss = replace(ADVICE, decision=found).line(), f"at most {worst - 1:.1%}"
    assert f"loss of G = {found.group_size} {loss}" in line
    assert ("ends of intervals are not known" in line) == (not known)


def test_an_advice_says_what_it_is():
    (least, most), star = ADVICE.sizes.g_interval, ADVICE.constants.g_star
    known = f"G* {star.value:.3g} (95%: {ends(*star.interval)})"
    assert f"{known}, G from {least} to {most} within" in ADVICE.line()
    size, text = ADVICE.group_size, str(ADVICE)
    assert f"In TRL: num_generations = {size}, 64 completions per step" in text
    found, best = ADVICE.decision, ADVICE.sizes.group_size
    risky, sure = (str(replace(ADVICE, decision=replace(found, worst=w))) for w in (1.25, 1.002))
    assert f"Use G = {size}: its error is at most 1.25 times the least" in risky
    assert f"Use G = {size}: no other feasible group size has a smaller error, for all" in sure
    assert "for all c1, c2 and c3 in their 95% intervals." in text
    assert (f"G = {best}, the best for the estimates, risks more" in text) == (best != size)
    free = replace(ADVICE, decision=replace(found, not_ruled_out=(2, 16)))
    assert "No G from 2 to 16 is ruled out as the best" in str(free)
    assert "is ruled out" not in str(replace(free, decision=replace(found, not_ruled_out=(4, 4))))
    crit = ADVICE.constants.k_crit
    assert f"{crit.value:.3g} outputs per step (95%: {crit.low:.3g} " in text
    assert "settled" not in text
    unsettled = replace(ADVICE, looks=({"settled": True}, {"settled": False}))
    assert "All prompts are used, but the advice is still too uncertain" in str(unsettled)
    settled = replace(ADVICE, looks=({"settled": False}, {"settled": True}))
    assert "All prompts are used" not in str(settled)


@pytest.mark.parametrize(("near", "shown"), [((64, 8), None), ((72, 6), [72, 6]), (None, None)])
def test_a_budget_that_a_good_group_size_divides(near, shown):
    advice = replace(ADVICE, better_budget=near)
    assert advice.to_dict()["better_budget"] == shown
    text = str(advice)
    assert ("take a budget of 72 with G = 6, or here G = " in text) == (shown is not None)
    assert ("95% interval of the best real G" in text) == (near is not None)


def test_json_has_the_same_numbers():
    data = strict(json.dumps(ADVICE.to_dict()))
    assert data["group_size"] == ADVICE.group_size
    assert data["worst_ratio"] == ADVICE.decision.worst
    assert data["g_star"] == ADVICE.constants.g_star.value
    assert data["g_star_interval"] == list(ADVICE.constants.g_star.interval)
    assert data["g_interval"] == list(ADVICE.sizes.g_interval)
    assert data["critic_cost"] == ADVICE.critic_cost
    assert data["critic_cost"]["mse_over_oracle"] > 1
    assert (data["pool"]["prompts"], data["pool"]["rollouts"]) == (80, 8)
    assert data["looks"] is None
    assert "adaptive" not in data
    assert "choice" not in data


@pytest.mark.parametrize("further", [0.0, 12.0])
def test_one_prompt_that_makes_most_of_the_signal_is_named(further):
    """Rewards of one prompt of 20 go with scores as no others do."""
    rng = np.random.default_rng(3)
    z = rng.integers(0, 2, (20, 8)).astype(float)
    s = rng.normal(size=(20, 8, 4)) + z[..., None] * rng.normal(size=(20, 1, 4))
    s[7] += further * z[7, :, None]
    pool = ScoredPool.from_scores(z, s)
    others = constants(pool.select_prompts([*range(7), *range(8, 20)]))
    texts = [str(advise_pool(pool, 64)), str(errors_of_pool(pool, [2]))]
    records = [advise_pool(pool, 64).to_dict(), errors_of_pool(pool, [2]).to_dict()]
    if not further:
        assert not any("One prompt" in text for text in texts)
        assert [record["dominant"] for record in records] == [None, None]
        return
    star = others.g_star
    for text, record in zip(texts, records, strict=True):
        assert f"One prompt, '7', contributes {record['dominant']['share']:.0%} of E‖g(X)‖²" in text
        assert f"others alone G* is {star.value:.3g} (95%: {ends(*star.interval)})" in text
        assert record["dominant"]["g_star"] == star.value
        assert record["dominant"]["share"] > 0.5


def test_an_end_that_is_missing_is_said():
    """Two prompts do not tell c1 from 0."""
    rng = np.random.default_rng(0)
    z = np.tile([1.0, 0.0], (6, 4))
    advice = advise_pool(ScoredPool.from_scores(z, rng.normal(size=(6, 8, 3))), 64)
    assert advice.constants.g_star.high == np.inf
    assert "no upper end (score more prompts)" in str(advice)
    assert "no upper end (score more prompts)" in advice.line()
    assert " inf" not in str(advice) + advice.line()
    # It is never the estimate that is advised: c1 is estimated below 0.
    assert (advice.sizes.group_size, advice.group_size) == (64, 4)
    assert (
        "No G from 2 to 64 is ruled out as the best. G = 64, the best for the estimates, risks"
        in str(advice)
    )
    assert "until more is known" not in str(advice)
    unknown = replace(advice, decision=replace(advice.decision, known=False), settled_by=240)
    assert "Use G = 4 until more is known: its error is at most" in str(unknown)
    assert "for every c1/c3 that the interval of G* allows (at most 1), if c2/c3" in str(unknown)
    assert "About 240 prompts in total would decide it." in str(unknown)
    assert "in total would decide" not in str(advice)
    assert unknown.to_dict()["settled_by"] == 240
    assert not unknown.to_dict()["ends_known"]
