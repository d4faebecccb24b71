"""A pool that grows until the group size is known: what it costs, and how often its intervals miss."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from tests.support import commands
from tests.support.commands import strict
from tests.support.listed_pools import many_contexts, sampled
from ustat_pg.cli import main
from ustat_pg.llm.advice import model_pool
from ustat_pg.llm.advice.advise import advise_model, decide
from ustat_pg.llm.advice.model_pool import ModelPool, look_sizes
from ustat_pg.llm.pool import estimates
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.tasks.named import drawn, load_task
from ustat_pg.predictions import mse_constants, optimal_group_size
from ustat_pg.validation import InputError

RUNS, ROLLOUTS = 250, 6
BANDIT = many_contexts()
MODEL = ("--model", "embedded:short", "--samples", "4", "--budget", "64")
"""The 48 prompts that --limit takes have two looks, at 32 and at all."""


def out_of(capsys, *words) -> str:
    return commands.out_of(capsys, main, *words)


def advice(capsys, *words, of=MODEL):
    """The advice in JSON; lines on looks are on stderr."""
    assert main([str(word) for word in ("advise", *of, *words, "--json")]) == 0
    return strict(capsys.readouterr().out)


# Statistics.


def pool_of(prompts, seed):
    """So many prompts drawn anew, and rollouts of each."""
    return sampled(BANDIT, prompts, ROLLOUTS, seed)


def test_whichever_look_is_the_last_its_interval_holds_its_level():
    """A rule that stopped where the interval misses could do no worse than all looks together."""
    star = optimal_group_size(mse_constants(BANDIT))
    sizes = look_sizes(500)
    missed = {1: 0, len(sizes): 0}
    for run in range(RUNS):
        pool = pool_of(500, run)
        for looks in missed:
            grown = replace(pool, config={"looks": looks})
            ends = [constants(grown.select_prompts(range(size))).g_star.interval for size in sizes]
            missed[looks] += any(not low <= star <= high for low, high in ends)
    most = binom.isf(1e-4, RUNS, 0.05)
    assert 0 < missed[len(sizes)] <= most
    # Intervals that do not share the errors miss more often.
    assert missed[1] > most


def test_all_intervals_of_a_pool_share_the_errors_of_its_looks():
    once = pool_of(240, 0)
    grown = replace(once, config={"looks": 5})

    def widths(pool):
        known, sizes = constants(pool), [2, 4]
        frames = [
            estimates.summary(pool),
            estimates.frac_reward_zero_std(pool, sizes),
            estimates.curves(pool, sizes, ["grpo"]),
            estimates.ordering(pool, 4),
            known.to_frame()[:5],
        ]
        result = np.concatenate([frame["high"] - frame["low"] for frame in frames])
        ratios = estimates.noise_to_signal(pool, sizes, ["grpo", "std"])
        both = ratios["high"] - ratios["low"], ratios["relative_high"] - ratios["relative_low"]
        cost = estimates.oracle_ratio(pool, sizes)
        return result, np.concatenate([*both, cost["high"] - cost["low"]])

    (alone, others), (shared, wider) = widths(once), widths(grown)
    wide = (alone > 0) & (alone < 0.99)
    # Student's quantiles of 99% and of 95%, at most 239 degrees of freedom; shares are cut to 0 to 1.
    assert wide.sum() > 10
    assert (shared[wide] / alone[wide] > 2.5966 / 1.9699 - 1e-3).all()
    # What few prompts carry, as they do c1, has its 99% far out.
    assert np.median(shared[wide] / alone[wide]) < 1.45
    assert (shared[wide] / alone[wide] < 3).all()
    varied = others > 1e-9
    assert (wider[varied] > 1.2 * others[varied]).all()


def test_a_decision_is_what_its_words_say():
    pool = replace(pool_of(500, 3), config={"looks": 5})
    found = decide(pool.select_prompts(range(128)), 1024).decision
    assert found.settles(found.worst - 1)
    assert found.worst > 1
    assert not found.settles((found.worst - 1) * 0.999)
    equal = replace(pool, rewards=np.ones_like(pool.rewards))
    assert decide(equal, 1024) is None
    # Two prompts: their constants have no error that could be known.
    first = decide(pool.select_prompts([0, 1]), 1024)
    assert not first.decision.known
    assert not first.decision.settles(1.0)
    assert first.settled_by is None


# The command.


def test_prompts_come_in_looks_until_enough_is_known(capsys, rows, scored_prompts, tmp_path):
    words = ("--limit", "96", "--out", tmp_path)
    first = advice(capsys, *words, "--until", "900%")
    assert [look["prompts"] for look in first["looks"]] == [32]
    assert first["looks"][0]["settled"]
    assert first["worst_ratio"] <= 10
    assert len(set(rows)) == len(rows) == 32 * 4
    # The same prompts as --limit takes of these, and none is drawn or scored again.
    names = ScoredPool.load(tmp_path / "scored.npz").prompts
    prompts = drawn(load_task("embedded:short").prompts, 96)
    assert names == tuple(prompt.id for prompt in drawn(prompts, 32))
    rows.clear()
    scored_prompts.clear()
    again = advice(capsys, *words, "--until", "900%")
    assert again == first
    assert (rows, scored_prompts) == ([], [])
    more = advice(capsys, *words, "--until", "0.01%")
    assert more["looks"][0] == {**first["looks"][0], "settled": False}
    assert [look["prompts"] for look in more["looks"]] == [32, 64, 96]
    assert not more["looks"][2]["settled"]
    assert len(rows) == 64 * 4
    assert len(scored_prompts) == 64
    # A smaller pool takes the larger one's place, whose prompts are kept nevertheless.
    scored_prompts.clear()
    assert advice(capsys, *words, "--until", "900%") == first
    assert ScoredPool.load(tmp_path / "scored.npz").size == 32
    assert advice(capsys, *words, "--until", "0.01%") == more
    assert scored_prompts == []
    # The interval is that of both looks.
    pool = ScoredPool.load(tmp_path / "scored.npz")
    alone = constants(replace(pool, config={})).g_star
    assert more["g_star_interval"][0] < alone.low
    text = out_of(capsys, "advise", "--scored", tmp_path / "scored.npz", "--budget", "64")
    assert "the 95% apply to all 3 looks together, 98.3% to each" in text


def test_a_look_without_a_signal_goes_on(capsys, tmp_path):
    """All rewards of the first 32 prompts are equal; the others' differ."""
    order = [prompt.id for prompt in drawn(load_task("embedded:short").prompts, 48)]
    first = set(drawn(order, 32))
    file = tmp_path / "mine.py"
    file.write_text(
        f"FIRST = {first!r}\n\n\ndef late(prompts, completions, name, **columns):\n"
        "    return [float(n not in FIRST and i % 2) for i, n in enumerate(name)]\n"
    )
    asked = {prompt.id: prompt.text for prompt in load_task("embedded:short").prompts}
    prompts = ({"id": name, "prompt": asked[name], "name": name} for name in order)
    prompts = commands.jsonl(tmp_path / "prompts.jsonl", *prompts)
    words = ("--prompts", prompts, "--verifier", f"{file}:late")
    result = advice(capsys, *words, "--max-new-tokens", "4", "--until", "1%")
    assert [look["prompts"] for look in result["looks"]] == [32, 48]
    assert set(result["looks"][0]) == {"prompts", "settled"}


@pytest.mark.parametrize(("limit", "said"), [(20, ["20"]), (96, ["32", "96"])])
def test_the_time_is_said_before_all_prompts_but_the_first_are_sampled(
    monkeypatch, caplog, rows, limit, said
):
    """Its rollouts take 2 s by this clock, its scores 3 s."""
    clock, drawn_by_then = iter([0.0, 2.0, 5.0]), []
    monkeypatch.setattr(model_pool.time, "monotonic", lambda: next(clock))
    original = model_pool._forecast
    monkeypatch.setattr(
        model_pool, "_forecast", lambda *now: (drawn_by_then.append(len(rows)), original(*now))
    )
    pool = model_pool.ModelPool(model="embedded:short", samples=4, limit=limit, device="cpu")
    with caplog.at_level("INFO", logger="ustat_pg.llm"):
        next(pool.pools(looks=True))
    assert drawn_by_then == [4]
    words = [f"{5 * int(n)} s for {n} prompts (sampling {2 * int(n)} s" for n in said]
    (message,) = [r.getMessage() for r in caplog.records if "from a first" in r.getMessage()]
    assert all(word in message for word in words)
    # The first prompt is not drawn again.
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "num_generations=8",
            "group size is 8: groups are drawn from the pool, which has 4 rollouts",
        ),
        (
            "num_generations=1",
            "group size of the options in use is 1: write num_generations=G, at least 2",
        ),
        (
            "scale_rewards=batch num_generations=2",
            "no closed form; these options have a closed form: scale_rewards=group, scale_rewards=none",
        ),
    ],
)
def test_options_in_use_without_known_noise_are_refused_before_anything_is_sampled(
    capsys, options, text
):
    assert text in commands.refusal_of(
        capsys, main, "advise", *MODEL, "--estimator", f"trl {options}"
    )


def log_of(path, groups=40, rollouts=6, reward=lambda text: float(len(text) % 2), steps=1):
    """A trainer's log of made-up outputs, one group of each prompt in each step."""
    rows = []
    for step in range(steps):
        for prompt in drawn(load_task("embedded:short").prompts, 60)[:groups]:
            texts = [f"={(7 * i + len(prompt.text)) % 23}{step or ''}" for i in range(rollouts)]
            texts = [text if i % 3 else text + "1" for i, text in enumerate(texts)]
            own = {"prompt": prompt.text, "step": step}
            rows += [{**own, "completion": t, "reward": reward(t)} for t in texts]
    return commands.jsonl(path, *rows)


LOGGED = ("--model", "embedded:short", "--budget", "48", "--off-policy", "--rollouts")


def advised(capsys, log, spec, *words):
    return advice(capsys, *words, "--estimator", spec, of=(*LOGGED, log))


@pytest.mark.filterwarnings("ignore")
def test_a_prompt_of_several_steps_is_one_prompt(capsys, tmp_path, scored_prompts):
    log, kept = log_of(tmp_path / "log.jsonl", groups=7, steps=3), ("--out", tmp_path / "out")
    found = advice(capsys, *kept, "--estimator", "trl num_generations=6", of=(*LOGGED, log))
    assert [found["pool"][name] for name in ("prompts", "groups", "rollouts")] == [7, 21, 6]
    assert found["choice"]["table"][0]["group_size"] == 6
    assert len(scored_prompts) == 21
    pool = ScoredPool.load(tmp_path / "out" / "scored.npz")
    as_many = constants(replace(pool, clusters=None))
    assert found["gradient_sq"] == pytest.approx(constants(pool).signal.value)
    assert found["gradient_sq"] != pytest.approx(as_many.signal.value)
    text = str(decide(pool, 48))
    assert "7 prompts in 21 groups of 6 rollouts; mean reward" in text
    assert "a prompt's groups are averaged and count as one prompt; if the policy" in text
    assert "(7 prompts)." in text
    # A prompt is drawn with its groups, which lie in the folder already.
    some = advice(capsys, *kept, "--limit", "5", of=(*LOGGED, log))["pool"]
    assert (some["prompts"], some["groups"], len(scored_prompts)) == (5, 15, 21)
    by_hand = advice(capsys, "--group-by", "prompt", of=(*LOGGED, log))["pool"]
    assert [by_hand[name] for name in ("prompts", "groups", "rollouts")] == [7, 7, 18]
    scored_prompts.clear()
    one = log_of(tmp_path / "one.jsonl", groups=1, steps=3)
    assert "there is 1 prompt" in commands.refusal_of(capsys, main, "advise", *LOGGED, one)
    assert not scored_prompts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("graded", [False, True])
def test_a_log_answers_at_the_group_size_of_its_own_run(capsys, tmp_path, graded):
    reward = (
        (lambda text: len(text) + int(text[1]) / 4) if graded else lambda text: int(text[1]) % 2
    )
    log = log_of(tmp_path / "log.jsonl", reward=reward)
    found = advised(capsys, log, "trl num_generations=6 top_p=0.9 max_grad_norm=1.0")["choice"]
    first, *others = found["table"]
    assert (first["estimator"], first["group_size"], first["relative"]) == ("std-ddof1", 6, 1)
    bias = found["direction"]
    if graded:
        assert "group-mean" in {row["estimator"] for row in others}
        assert 0 < bias["low"] <= bias["cosine"] <= bias["high"] <= 1
    else:
        # Here the gradient is not distinguishable from 0.
        assert bias == {"scale": None, "cosine": None, "low": -1.0, "high": 1.0}
    assert [line.partition(":")[0] for line in found["beside"]] == [
        "top_p=0.9",
        "max_grad_norm=1.0",
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "reward", "said"),
    [
        (
            "num_generations=8",
            None,
            "group size is 8: groups are drawn from the pool, which has 6 rollouts",
        ),
        ("num_generations=4", lambda text: len(text) + 0.5, "rewards that are 0 or 1"),
        ("num_generations=6", lambda text: 1.0, "all rewards of each prompt are equal"),
        ("scale_rewards=batch num_generations=6", None, "depends on more than a group's rewards"),
    ],
)
def test_what_a_log_cannot_answer_is_said_before_anything_is_scored(
    capsys, tmp_path, scored_prompts, options, reward, said
):
    log = log_of(tmp_path / "log.jsonl", groups=5, **({} if reward is None else {"reward": reward}))
    asked = ("--model", "embedded:short", "--rollouts", log, "--budget", "48")
    assert said in commands.refusal_of(
        capsys, main, "advise", *asked, "--estimator", f"trl {options}"
    )
    assert not scored_prompts


def test_prompts_without_a_signal_are_said_before_all_are_scored(scored_prompts):
    """A first one is, for the time that the others would take."""
    source = ModelPool(model="embedded:short", samples=4, limit=6)
    model, task = source.parts

    def never(*, completions, **columns):
        return [0.0] * len(completions)

    vars(source)["parts"] = model, replace(task, verifier=never)
    with pytest.raises(InputError, match="all rewards of each prompt are equal"):
        advise_model(source, 64)
    assert len(scored_prompts) <= 1
