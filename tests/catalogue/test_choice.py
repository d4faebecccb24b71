"""Group size and estimator together, beside a trainer's options: exact on a problem, estimated on a pool."""

import numpy as np
import pytest

from tests.support import commands
from tests.support.commands import strict
from tests.support.refusals import refusals
from ustat_pg import advise
from ustat_pg.catalogue import resolve
from ustat_pg.catalogue.choice import choose
from ustat_pg.cli import main
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import load_problem

OPTIONS = "trl scale_rewards=group num_generations=8"


def test_a_problems_choice_is_of_exact_noise_over_signal():
    choice = advise("ustat:uneven", 64, estimator=OPTIONS).choice
    moments = load_problem("ustat:uneven").moments()

    def noise(name, size):
        return size * gradient_mse(moments, name, size).noise_to_signal

    current = choice.candidates[0]
    assert (current.estimator, current.group_size, current.relative) == ("std-ddof1", 8, 1)
    assert current.noise_to_signal == pytest.approx(noise("std-ddof1", 8) / 64)
    for each in choice.candidates:
        ratio = noise(each.estimator, each.group_size) / noise("std-ddof1", 8)
        assert each.relative == each.low == each.high == pytest.approx(ratio, rel=1e-9)
        assert each.unbiased == (each.estimator != "std-ddof1")
    assert {each.label for each in choice.candidates} == {
        "scale_rewards=group",
        "scale_rewards=none",
        "bayes:1,1",
    }
    assert choice.best.relative == min(each.relative for each in choice.candidates)
    assert choice.best_in_use.options == "scale_rewards=group"


def measured(best):
    """All as noisy as what is in use, but for one pair, with intervals of a tenth."""
    return lambda pairs: [
        (8.0, 1.0, 1.0, 1.0)
        if pair == pairs[0]
        else (8 * r, r, r - 0.1, r + 0.1)
        if (r := best.get(pair, 1.0))
        else (np.nan,) * 4
        for pair in pairs
    ]


def test_what_is_in_use_is_kept_unless_another_is_known_to_be_better():
    kept = choose(OPTIONS, 64, [2, 8], measured({("group-mean", 2): 0.95}))
    assert kept.best == kept.best_in_use == kept.candidates[0]
    assert "Keep it" in str(kept)
    better = choose(OPTIONS, 64, [2, 8], measured({("group-mean", 2): 0.5, ("std-ddof1", 2): 0.7}))
    assert (better.best.estimator, better.best_in_use.estimator) == ("group-mean", "std-ddof1")
    text = "Take scale_rewards=none with G = 2: 0.5 (95%: 0.4 to 0.6) times the noise over signal."
    assert text in str(better)
    # Another objective is never advised, and what is not known is left out.
    rloo = choose(
        "verl adv_estimator=rloo n=4",
        64,
        [4],
        measured({("std-ddof1", 4): 0.1, ("bayes:1,1", 4): 0}),
    )
    assert rloo.best == rloo.candidates[0]
    assert "bayes:1,1" not in str(rloo)


test_options_without_a_closed_form_are_refused = refusals(
    ("verl", "group size of the options in use is 1: write rollout.n=G"),
    ("std", "'std' is the name of an estimator: write a framework and its options"),
    ("trl scale_rewards=batch", "depends on more than a group's rewards"),
    of=lambda options: advise("ustat:uneven", 64, estimator=options),
)


def test_a_pools_choice_pairs_its_groups(capsys, tmp_path):
    pytest.importorskip("torch")
    from tests.support.listed_pools import many_contexts, sampled
    from ustat_pg.llm.pool.estimates import compared, noise_to_signal

    bandit = many_contexts()
    pool = sampled(bandit, 200, 6, 0)
    frame = noise_to_signal(pool, [4], ["std-ddof1", "grpo"]).iloc[1]
    first, same, smaller, weighted = compared(
        pool, [("std-ddof1", 4), ("grpo", 4), ("grpo", 2), ("norm-weighted", 2)]
    )
    assert first[1:] == (1, 1, 1)
    wanted = frame[["relative", "relative_low", "relative_high"]].tolist()
    assert same == pytest.approx((4 * frame["ratio"], *wanted))
    exact = [2 * gradient_mse(bandit.moments(), "grpo", 2).noise_to_signal]
    exact += [exact[0] / (4 * gradient_mse(bandit.moments(), "std-ddof1", 4).noise_to_signal)]
    assert smaller[0] == pytest.approx(exact[0], rel=0.5)
    assert smaller[2] < exact[1] < smaller[3]
    assert np.isfinite(weighted[0])
    advice = advise(pool, 64, estimator="trl num_generations=4")
    assert advice.to_dict()["choice"]["table"][0]["group_size"] == 4
    assert {each.group_size for each in advice.choice.candidates} == {2, 4}


def test_the_command_says_it(capsys):
    words = ("advise", "ustat:uneven", "--budget", "64", "--estimator", OPTIONS)
    text = commands.out_of(capsys, main, *words)
    assert "As TRL, GRPOTrainer, scale_rewards=group with G = 8 (std-ddof1)" in text
    result = strict(commands.out_of(capsys, main, *words, "--json"))["choice"]
    assert result["framework"] == resolve(OPTIONS).framework.name
    assert result["best"]["relative"] < result["best_in_use"]["relative"] < 1


def test_the_worst_case_of_an_interval_decides_not_the_estimate():
    """A pair known to .6 to .75 is taken before one that looks like .4 and may be 1.2."""
    found = {
        ("group-mean", 2): (3.2, 0.4, 0.1, 1.2),
        ("group-mean", 4): (5.6, 0.7, 0.6, 0.75),
        ("std-ddof1", 2): (4.0, 0.5, 0.2, 0.99),
        ("std-ddof1", 4): (7.2, 0.9, 0.85, 0.95),
    }
    ours = (8.0, 1.0, 1.0, 1.0)
    choice = choose(OPTIONS, 64, [2, 4, 8], lambda pairs: [found.get(pair, ours) for pair in pairs])
    best, resized = choice.best, choice.best_in_use
    assert (best.estimator, best.group_size, best.relative) == ("group-mean", 4, 0.7)
    assert (best.low, best.high, best.noise_to_signal) == (0.6, 0.75, 5.6 / 64)
    assert (resized.estimator, resized.group_size) == ("std-ddof1", 4)
    text = str(choice)
    assert "Take scale_rewards=none with G = 4: 0.7 (95%: 0.6 to 0.75) times the noise" in text
    assert "With the same estimator: scale_rewards=group with G = 4: 0.9 (95%: 0.85 to" in text
    # One whose interval reaches what is in use is not known to be better.
    found = {("group-mean", 2): (3.2, 0.4, 0.1, 1.2)}
    kept = choose(OPTIONS, 64, [2, 8], lambda pairs: [found.get(pair, ours) for pair in pairs])
    assert kept.best == kept.candidates[0]
