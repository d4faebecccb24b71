"""A step of TRL's trainers is the gradient that the table in `training` says, at the same completions."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pytest

from tests.support.commands import two_processes
from tests.support.models import fresh
from tests.support.refusals import refuses
from ustat_pg import estimators
from ustat_pg.llm.budgets import allowed_group_sizes, refuse_group_size
from ustat_pg.llm.prompts import Prompt, Task

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.trainers import (  # noqa: E402
    LONGEST,
    advantages,
    flat,
    gradient,
    letters,
    one_step,
)
from ustat_pg.llm.trainers import build_trainer, reward_function, training_set  # noqa: E402
from ustat_pg.llm.training import TRAINERS, Training  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")


@pytest.fixture(scope="module")
def task():
    prompts = tuple(Prompt(f"q{i}", f"{i}+{i + 1}=" * (1 + i % 2), {}) for i in range(8))
    return Task("sums", prompts, letters, LONGEST)


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def is_step(change, wanted, factor=1.0):
    assert cosine(change, wanted) > 1 - 1e-6
    assert float(change.norm() / wanted.norm()) == pytest.approx(factor, abs=1e-4 * factor)


LOO = ("rloo", "grpo-corrected")
CASES = [*((name, size) for name in (*LOO, *WEIGHTED) for size in (16, 4)), ("vanilla", 8)]


@pytest.mark.parametrize(("name", "micro_batch"), CASES)
def test_a_step_is_the_gradient_of_the_theory(small, task, tmp_path, name, micro_batch):
    change, scores, rewards, weights, trainer = one_step(
        small, task, tmp_path, name, micro_batch=micro_batch
    )
    own = advantages(name, rewards, weights)
    is_step(change, gradient(scores, own))
    assert len(set(weights["length-weighted"].flatten().tolist())) > 1
    # Another estimator is told apart at this precision.
    for other in {"rloo", "vanilla", *WEIGHTED} - {"rloo" if name in LOO else name}:
        rival = gradient(scores, advantages(other, rewards, weights))
        assert float((change - rival).norm() / rival.norm()) > 1e-3, other
    if name in WEIGHTED:
        logged = np.array(trainer._logs["advantages"])
        np.testing.assert_allclose(logged, own.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("group_size", [2, 8])
def test_dr_grpo_has_the_factor_that_is_named(small, task, tmp_path, group_size):
    change, scores, rewards, _, _ = one_step(
        small, task, tmp_path, "dr-grpo", group_size=group_size, micro_batch=8
    )
    wanted = gradient(scores, estimators.grpo(rewards))
    training = Training(group_size, 16, 1, 0.1, trainer="dr-grpo", max_new_tokens=LONGEST)
    factor = training.step_factor()
    assert factor == (group_size - 1) / (group_size * LONGEST)
    is_step(change, wanted, factor)


def test_stock_grpo_has_another_direction(small, task, tmp_path):
    change, scores, rewards, _, _ = one_step(small, task, tmp_path, "grpo-stock")
    assert cosine(change, gradient(scores, estimators.grpo(rewards))) < 1 - 1e-3
    assert Training(4, 16, 1, 0.1, trainer="grpo-stock").step_factor() is None


def test_a_penalty_is_a_deviation_and_changes_the_step(small, task, tmp_path):
    """TRL's own default of beta is 0.05; at the first step policy and reference agree, at the
    second they do not.
    """
    plain, penalised = [], []
    for options, found in (({}, plain), ({"beta": 0.05}, penalised)):
        training = Training(4, 16, 2, 0.5, max_new_tokens=LONGEST, micro_batch=16, options=options)
        assert training.deviations() == options
        assert training.step_factor() == (None if options else 1.0)
        trained = fresh(small)
        trainer = build_trainer(training, trained, task, tmp_path)
        trainer.train()
        found.append(flat(trained.model))
    difference = (plain[0] - penalised[0]).norm() / (plain[0] - flat(small.model)).norm()
    assert float(difference) > 1e-3


def test_a_step_with_rewards_that_are_missing(small, task, tmp_path):
    """A prompt whose verifier raises does not move the policy, and is counted."""

    def picky(*, prompts, completions, **columns):
        if prompts[0].startswith("3"):
            raise RuntimeError("no verdict on three")
        return letters(completions=completions)

    broken = Task("picky", task.prompts[2:4], picky, LONGEST)
    for name in ("rloo", "length-weighted"):
        trained = fresh(small)
        rewards = reward_function(broken)
        training = Training(4, 8, 1, 0.5, trainer=name, max_new_tokens=LONGEST, micro_batch=8)
        trainer = build_trainer(training, trained, broken, tmp_path, rewards=rewards)
        trainer.train()
        assert len(rewards.failures) == 1
        assert "q3" in rewards.failures[0]
        assert trainer.state.log_history[0]["verifier_failures"] == 1
        logged = np.array(trainer._logs["advantages"]).reshape(2, 4)
        assert sorted(np.abs(logged).sum(1) == 0) == [False, True]


def mostly(*, completions, **columns):
    """1 where an answer begins with one of half of the characters."""
    return [float(ord(text[:1] or "a") % 2) for text in completions]


def others(rewards):
    """How many of the others of its group succeeded, for each output."""
    return rewards.sum(1, keepdims=True) - rewards


TABLES = {
    "bayes:1,1": lambda z, k: z - (k + 1) / 5,
    "loo-table:0.1,0.3,0.4,0.9": lambda z, k: z - np.array([0.1, 0.3, 0.4, 0.9])[k],
    # a₁(1), ..., a₁(4), then a₀(0), ..., a₀(3): biased, as a table may be.
    "count-table:0.9,0.7,0.5,0.1,-0.1,-0.2,-0.5,-0.8": lambda z, k: np.where(
        z == 1, np.array([0.9, 0.7, 0.5, 0.1])[k], np.array([-0.1, -0.2, -0.5, -0.8])[k]
    ),
    "running-table": lambda z, k: z - (k + 1) / 5,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_step_of_a_named_table(small, task, tmp_path, name):
    binary = Task("mostly", task.prompts, mostly, LONGEST)
    change, scores, rewards, _, trainer = one_step(small, binary, tmp_path, name)
    z = rewards.numpy()
    own = TABLES[name](z, others(z).astype(int))
    is_step(change, gradient(scores, torch.tensor(own)))
    rival = gradient(scores, estimators.grpo(rewards))
    assert float((change - rival).norm() / rival.norm()) > 1e-2
    np.testing.assert_allclose(trainer._logs["advantages"], own.flatten(), rtol=1e-6)


def test_a_running_table_learns_from_the_steps_before(small, task, tmp_path):
    """The second step's loss has the table of the first step's groups, and not of its own."""
    binary = Task("mostly", task.prompts, mostly, LONGEST)
    words = {"max_new_tokens": LONGEST, "micro_batch": 16, "trainer": "running-table"}
    trainer = build_trainer(Training(4, 16, 2, 0.5, **words), fresh(small), binary, tmp_path)
    rewards, losses = [], []
    draw, loss = trainer._calculate_rewards, trainer._compute_loss

    def drawing(*given):
        rewards.append(draw(*given))
        return rewards[-1]

    def computing(model, inputs):
        losses.append(inputs["advantages"].numpy())
        return loss(model, inputs)

    trainer._calculate_rewards, trainer._compute_loss = drawing, computing
    trainer.train()
    first, second = (found.numpy().reshape(4, 4).astype(int) for found in rewards)
    table = [
        (k + 1 + first[others(first) == k].sum()) / (5 + (others(first) == k).sum())
        for k in range(4)
    ]
    # TRL shuffles the completions of a step.
    wanted = np.sort((second - np.array(table)[others(second)]).flatten())
    np.testing.assert_allclose(np.sort(losses[1]), wanted, atol=1e-6)
    unlearned = np.sort((second - (others(second) + 1) / 5).flatten())
    assert np.abs(wanted - unlearned).max() > 0.05
    learned = trainer.ustat_pg_table.__self__
    table = learned.table
    trainer.evaluate(training_set(binary))
    np.testing.assert_array_equal(learned.table, table)


@pytest.mark.parametrize("name", ["bayes:1,1", "running-table"])
def test_a_group_with_a_missing_reward_has_no_table(small, task, tmp_path, name):
    def one_missing(*, completions, **columns):
        return [None, *map(float, np.arange(1, len(completions)) % 2)]

    words = {"max_new_tokens": LONGEST, "micro_batch": 8, "trainer": name}
    trainer = build_trainer(
        Training(4, 8, 1, 0.5, **words), fresh(small), task, tmp_path, rewards=one_missing
    )
    trainer.train()
    whole = [-0.6, 0.6, -0.6, 0.6]
    np.testing.assert_allclose(trainer._logs["advantages"], [0] * 4 + whole, atol=1e-6)
    if name == "running-table":
        np.testing.assert_allclose(trainer.ustat_pg_table.__self__.table, [0.2, 4 / 7, 3 / 7, 0.8])


def test_an_optimizer_of_the_users_own(small, task, tmp_path):
    trained = fresh(small)
    training = Training(4, 16, 1, 0.5, max_new_tokens=LONGEST, optimizer="adamw")
    assert training.deviations() == {"optim": "adamw_torch"}
    mine = torch.optim.SGD(trained.model.parameters(), lr=0.0)
    before = flat(trained.model)
    build_trainer(training, trained, task, tmp_path, optimizers=(mine, None)).train()
    assert torch.equal(before, flat(trained.model))
    build_trainer(training, trained, task, tmp_path).train()
    assert not torch.equal(before, flat(trained.model))


def test_group_sizes_that_the_budget_holds():
    assert allowed_group_sizes(12) == (2, 3, 4, 6, 12)
    assert allowed_group_sizes(12, prompts=3) == (4, 6, 12)
    refuse_group_size(6, 12, 2)
    refuses(r"does not divide .* choose one of 2, 3, 4, 6, 12", refuse_group_size, 5, 12)
    refuses("at least 2: choose one of 2, 3, 4, 6, 12", refuse_group_size, 1, 12)
    refuses(r"needs 6 prompts .* there are 3: choose one of 4, 6, 12", refuse_group_size, 2, 12, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 5}, "does not divide"),
        ({"micro_batch": 5}, "choose a micro-batch of 1, 2, 4, 8, 16"),
        ({"micro_batch": 2, "processes": 3}, "number of processes must divide"),
        ({"trainer": "ppo"}, "choose one of rloo, vanilla"),
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": float("nan")}, "positive number"),
        ({"device": "tpu"}, "cpu or cuda"),
        ({"options": {"seed": 3}}, "seed"),
        ({"trainer": "bayez:1,1"}, r"'bayez:1,1' is unknown: choose one of .*running-table, or a"),
        ({"trainer": "oracle"}, "'oracle' is unknown"),
        ({"trainer": "best"}, "'best' is unknown"),
        ({"trainer": "bayes:1"}, "it is written bayes:successes,failures"),
        ({"trainer": "loo-table:0.1,0.2"}, "the table has 2 values: a group of 4 needs as many"),
        ({"trainer": "running-table", "save_every": 2}, "does not hold the running-table"),
        ({"trainer": "bayes:1,1", "options": {"beta": 0.1}}, "beta would not enter"),
        ({"trainer": "vanilla", "options": {"beta": 0.1}}, "beta would not enter"),
    ],
)
def test_what_is_refused_before_anything_runs(settings, message):
    given = {"group_size": 4, "budget": 16, "steps": 1, "learning_rate": 0.1} | settings
    assert "\n" not in str(refuses(message, Training, **given))


def test_too_few_prompts_are_refused_before_training(small, task, tmp_path):
    refuses("needs 16 prompts", build_trainer, Training(2, 32, 1, 0.1), small, task, tmp_path)


@pytest.mark.parametrize("name", TRAINERS)
def test_configurations(tmp_path, name):
    """What TRL holds in the end is what was asked, several processes and vLLM included."""
    training = Training(
        8, 64, 5, 0.01, trainer=name, micro_batch=4, processes=2, save_every=2,
        options={"use_vllm": True, "vllm_mode": "colocate"},
    )  # fmt: skip
    made = training.configuration(tmp_path)
    assert made.gradient_accumulation_steps == made.steps_per_generation == 8
    assert (made.use_vllm, made.vllm_mode) == (True, "colocate")
    assert (made.save_strategy, made.save_steps) == ("steps", 2)
    assert (made.beta, made.temperature, made.top_p, made.top_k) == (0, 1, 1, 0)
    assert (made.max_grad_norm, made.weight_decay, made.num_iterations) == (0, 0, 1)
    if name in ("dr-grpo", "grpo-corrected"):
        assert made.vllm_importance_sampling_correction is False
        assert made.scale_rewards == "none"


TWO_PROCESSES = """
import json, sys
from pathlib import Path

import torch

from tests.support import trainers as shared
from ustat_pg.llm.models import load_model
from ustat_pg.llm.budgets import allowed_group_sizes, refuse_group_size
from ustat_pg.llm.prompts import Prompt, Task

torch.set_num_threads(1)
folder, out = map(Path, sys.argv[1:])
small = load_model(str(folder))
prompts = tuple(Prompt(f"q{i}", f"{i}+{i}=") for i in range(3))
task = Task("sums", prompts, shared.letters, shared.LONGEST)
worst = {}
for name in ("rloo", "norm-weighted", "length-weighted", "token-weighted", "grpo-corrected"):
    change, scores, rewards, weights, trainer = shared.one_step(
        small, task, out.parent / name, name, group_size=8, micro_batch=4, processes=2
    )
    wanted = shared.gradient(scores, shared.advantages(name, rewards, weights))
    worst[name] = float((change - wanted).norm() / wanted.norm())
    worst[name + " completions"] = len(scores)
if trainer.accelerator.is_main_process:
    out.write_text(json.dumps(worst))
"""


def test_a_step_of_two_processes(small, tmp_path):
    """A group that lies on two processes is one group still, and the step the same gradient."""
    script, out = tmp_path / "two.py", tmp_path / "worst.json"
    script.write_text(TWO_PROCESSES)
    two_processes(script, small.name, out)
    worst = json.loads(out.read_text())
    assert len(worst) == 10
    for name, value in worst.items():
        assert value == 16 if name.endswith("completions") else value < 1e-4, worst


def test_another_number_of_processes_is_refused(small, task, tmp_path):
    training = Training(4, 16, 1, 0.1, micro_batch=4, processes=2)
    said = r"for 2 process\(es\) and this is one of 1"
    refuses(said, build_trainer, training, small, task, tmp_path)


def test_prompts_come_in_an_order_of_the_seed(task):
    """B distinct prompts a step, the same of every group size; the remainder of an epoch left out."""
    training = Training(4, 12, 5, 0.1, seed=3, micro_batch=4)
    rows = training_set(task, training)["prompt_id"]
    steps = np.reshape(rows, (5, 3))
    assert all(len(set(step)) == 3 for step in steps)
    # Eight prompts make two steps of three; the third is of the next permutation.
    assert len({*steps[0], *steps[1]}) == 6
    assert rows == training_set(task, training)["prompt_id"]
    assert rows != training_set(task, Training(4, 12, 5, 0.1, seed=4, micro_batch=4))["prompt_id"]
    wider = training_set(task, Training(2, 12, 1, 0.1, seed=3, micro_batch=4))["prompt_id"]
    assert wider == rows[:6]


@pytest.mark.parametrize(
    ("found", "well"), [("1.16.3", True), ("1.17.0", False), ("1.1.16", False)]
)
def test_another_trl_is_refused_at_import(found, well, monkeypatch):
    """Its trainers' private members are changed here, and those of another version are others."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    source = importlib.util.find_spec("ustat_pg.llm.trainers")
    module = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if well:
        source.loader.exec_module(module)
    else:
        refuses(f"TRL is {found}, .*'trl~=1.16.0'", source.loader.exec_module, module)
