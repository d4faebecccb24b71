"""The callback's numbers are those of the step's own rewards, and it leaves the run as it was."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.models import fresh
from tests.support.refusals import refuses
from ustat_pg.llm.tasks import Prompt, Task

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from ustat_pg.llm import rollouts as rollouts_module  # noqa: E402
from ustat_pg.llm.callback import (  # noqa: E402
    GroupSignalCallback,
    MonitorWarning,
    group_signal,
)
from ustat_pg.llm.trainers import Training, build_trainer, reward_function  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

LONGEST = 4
PER_STEP = ("zero_share", "mean_reward", "solved_never", "solved_always")
MOMENTS = ("c1", "c2", "c3", "mse_vanilla", "mse_grpo", "mse_oracle")


def digit_first(*, completions, **columns):
    return [float(text[:1].isdigit()) for text in completions]


@pytest.fixture(scope="module")
def task():
    prompts = tuple(Prompt(f"q{i}", f"{i}+{i + 1}=", {}) for i in range(5))
    return Task("sums", prompts, digit_first, LONGEST)


def train(small, task, folder, *, callback=None, steps=3, trainer="rloo"):
    training = Training(2, 8, steps, 0.5, trainer=trainer, max_new_tokens=LONGEST, micro_batch=4)
    rewards = reward_function(task)
    if callback is not None:
        rewards = callback.watched(rewards)
    seen = []

    def spying(**columns):
        found = rewards(**columns)
        seen.append(list(found))
        return found

    callbacks = [] if callback is None else [callback]
    made = build_trainer(training, fresh(small), task, folder, rewards=spying, callbacks=callbacks)
    made.train()
    return made, seen


def records(trainer):
    return [record for record in trainer.state.log_history if "loss" in record]


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("name", ["rloo", "grpo-stock"])
def test_each_step_is_logged(small, task, tmp_path, name):
    trainer, seen = train(small, task, tmp_path, callback=GroupSignalCallback(), trainer=name)
    logged = records(trainer)
    assert len(logged) == len(seen) == 3
    for record, rewards in zip(logged, seen, strict=True):
        groups = np.reshape(rewards, (-1, 2))
        wanted = {
            "zero_share": np.mean(groups[:, 0] == groups[:, 1]),
            "mean_reward": np.mean(rewards),
            "solved_never": np.mean(groups.sum(1) == 0),
            "solved_always": np.mean(groups.sum(1) == 2),
        }
        found = {key: record[f"signal/{key}"] for key in PER_STEP}
        assert found == pytest.approx(wanted)
        # TRL's own figure of the first.
        assert record["frac_reward_zero_std"] == pytest.approx(found["zero_share"])
    shares = [record["signal/zero_share"] for record in logged]
    assert len(set(shares)) > 1 or 0 < shares[0] < 1


def test_the_sample_is_logged_and_the_run_is_the_same(small, task, tmp_path):
    plain, rewards_plain = train(small, task, tmp_path, callback=GroupSignalCallback())
    watching = GroupSignalCallback(every=2, task=task, prompts=4, rollouts=8)
    sampled, rewards_sampled = train(small, task, tmp_path, callback=watching)
    alone, _ = train(small, task, tmp_path)
    assert rewards_plain == rewards_sampled
    assert torch.equal(parameters(plain), parameters(sampled))
    assert torch.equal(parameters(plain), parameters(alone))
    assert not torch.equal(parameters(plain), parameters(small))
    first, second, third = records(sampled)
    # One before training, which the first record holds, and one after step 2.
    for record in (first, second):
        for key in MOMENTS:
            assert math.isfinite(record[f"moments/{key}"])
    assert not any(key.startswith("moments/") for key in third)
    assert first["moments/c2"] != second["moments/c2"]
    assert not any("moments" in key for record in records(plain) for key in record)


def test_the_sample_is_what_the_pool_says(small, task):
    """The same numbers as sampling and scoring by hand, with a pool of one's own."""
    from ustat_pg.llm.estimates import constants, curves
    from ustat_pg.llm.rollouts import sample
    from ustat_pg.llm.scoring import score_pool

    callback = GroupSignalCallback(every=1, task=task, rollouts=8, seed=3)
    model = fresh(small).model.train()
    found = callback.moments(model, small.tokenizer, 4)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    pool = score_pool(small, sample(small, task, 8, seed=3, batch=64))
    known = constants(pool)
    assert found["c2"] == pytest.approx(known.c2, rel=1e-6)
    table = curves(pool, [4], ["grpo"])
    assert found["mse_grpo"] == pytest.approx(float(table["mse"].iloc[0]), rel=1e-6)


def test_group_signal():
    found = group_signal([1, 1, 0, 0, 0, 1, math.nan, 1], 2)
    assert found == pytest.approx(
        {"zero_share": 0.75, "mean_reward": 4 / 7, "solved_never": 0.25, "solved_always": 0.5}
    )
    nothing = group_signal([math.nan] * 4, 4)
    assert nothing["zero_share"] == 1
    assert math.isnan(nothing["mean_reward"])
    assert group_signal([-1, -1, 2, 2], 2, bounds=(-1, 2))["solved_always"] == 0.5
    refuses("whole groups of 3", group_signal, [1, 0, 1, 0], 3)


def test_what_is_refused(small, task, tmp_path):
    refuses("without a task", GroupSignalCallback, every=5)
    refuses("rollouts is 3", GroupSignalCallback, every=5, task=task, rollouts=3)
    callback = GroupSignalCallback()
    callback.watched(digit_first)
    refuses("already", callback.watched, digit_first)


def test_an_unwatched_reward_function_is_told_once(small, task, tmp_path):
    training = Training(2, 4, 2, 0.5, max_new_tokens=LONGEST, micro_batch=4)
    callbacks = [GroupSignalCallback()]
    trainer = build_trainer(training, fresh(small), task, tmp_path, callbacks=callbacks)
    with pytest.warns(MonitorWarning, match="no reward function is watched") as caught:
        trainer.train()
    assert len(told(caught)) == 1
    assert len(records(trainer)) == 2


def told(caught):
    return [w for w in caught if issubclass(w.category, MonitorWarning)]


def text_rewards(*, completions, **columns):
    return ["good"] * len(completions)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"scores": {"memory": 10_000}}, "memory is 10000 bytes"),
        ({"reward": text_rewards}, "'good' as reward 0"),
        ({"bug": KeyError("layout")}, "KeyError: 'layout'"),
    ],
    ids=["memory", "text", "bug"],
)
def test_the_monitor_never_ends_the_training(small, task, tmp_path, monkeypatch, trouble, said):
    """Two samples fail, one warning says so, and the run is what it is without a monitor."""
    alone, _ = train(small, task, tmp_path, steps=2)
    drawn, real = [], rollouts_module.sample

    def sampled(*arguments, **more):
        drawn.append(1)
        if "bug" in trouble:
            raise trouble["bug"]
        return real(*arguments, **more)

    monkeypatch.setattr(rollouts_module, "sample", sampled)
    spoilt = replace(task, verifier=trouble.get("reward", task.verifier))
    watching = GroupSignalCallback(
        every=1, prompts=2, rollouts=4, task=spoilt, scores=trouble.get("scores")
    )
    with pytest.warns(MonitorWarning, match=said) as caught:
        run, _ = train(small, task, tmp_path, callback=watching, steps=2)
    assert len(told(caught)) == 1
    assert len(drawn) == (0 if "scores" in trouble else 3)
    assert torch.equal(parameters(run), parameters(alone))
    for record in records(run):
        assert "signal/zero_share" in record
        assert "moments/c2" not in record


def test_rewards_that_are_no_numbers_are_left_to_the_trainer():
    callback = GroupSignalCallback()
    watched = callback.watched(lambda **columns: [1, "good", None, 0])
    callback.group_size, callback._training = 2, True
    with pytest.warns(MonitorWarning, match="'good', no number"):
        assert watched() == [1, "good", None, 0]
    assert callback._waiting["signal/mean_reward"] == 0.5
    callback.group_size = 3
    with pytest.warns(MonitorWarning, match="whole groups of 3"):
        assert len(watched()) == 4


def test_the_monitor_holds_few_sums(small, task):
    """Eight folds at the most: their sums are in memory beside the training."""
    assert GroupSignalCallback().scores == {"folds": 8}
    assert GroupSignalCallback(scores={"folds": 4, "memory": 10**9}).scores["folds"] == 4
