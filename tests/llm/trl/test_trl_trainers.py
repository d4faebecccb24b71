"""A step of TRL's trainers, and of ours, is the gradient of the theory at the same completions."""

import numpy as np
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.support.commands import two_processes
from tests.support.models import fresh
from tests.support.refusals import refuses
from tests.support.trainers import (
    LONGEST,
    advantages,
    gradient,
    letters,
    one_step,
    trl_trainer,
)
from ustat_pg import estimators
from ustat_pg.llm import EstimatorTrainer
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.trl.training import dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")


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
        small, task, tmp_path, name, per_device_train_batch_size=micro_batch
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
@pytest.mark.parametrize(
    ("name", "settings", "longest"),
    [
        ("dr-grpo", {}, LONGEST),
        ("trl-grpo", {"loss_type": "luspo", "scale_rewards": "none"}, 1),
    ],
)
def test_trls_grpo_has_the_factor_that_is_named(
    small, task, tmp_path, group_size, name, settings, longest
):
    change, scores, rewards, _, _ = one_step(
        small, task, tmp_path, name, num_generations=group_size, **settings
    )
    wanted = gradient(scores, estimators.grpo(rewards))
    is_step(change, wanted, (group_size - 1) / (group_size * longest))


def test_stock_grpo_has_another_direction(small, task, tmp_path):
    change, scores, rewards, _, _ = one_step(small, task, tmp_path, "grpo-stock")
    assert cosine(change, gradient(scores, estimators.grpo(rewards))) < 1 - 1e-3


def test_a_step_with_rewards_that_are_missing(small, task, tmp_path):
    """A prompt whose verifier gives no rewards does not move the policy."""

    def picky(*, prompts, completions, **columns):
        result = letters(completions=completions)
        return [
            None if text.startswith("3") else z for text, z in zip(prompts, result, strict=True)
        ]

    broken = Task("picky", task.prompts[2:4], picky, LONGEST)
    for name in ("rloo", "length-weighted"):
        trainer = trl_trainer(fresh(small), broken, tmp_path, name, budget=8)
        trainer.train()
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
    trainer = trl_trainer(fresh(small), binary, tmp_path, "running-table", max_steps=2)
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
    first, second = (result.numpy().reshape(4, 4).astype(int) for result in rewards)
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
    trainer.evaluate(dataset(binary))
    np.testing.assert_array_equal(learned.table, table)


@pytest.mark.parametrize("name", ["bayes:1,1", "running-table"])
def test_a_group_with_a_missing_reward_has_no_table(small, task, tmp_path, name):
    def one_missing(*, completions, **columns):
        return [None, *map(float, np.arange(1, len(completions)) % 2)]

    missing = Task("missing", task.prompts, one_missing, LONGEST)
    trainer = trl_trainer(fresh(small), missing, tmp_path, name, budget=8)
    trainer.train()
    whole = [-0.6, 0.6, -0.6, 0.6]
    np.testing.assert_allclose(trainer._logs["advantages"], [0] * 4 + whole, atol=1e-6)
    if name == "running-table":
        np.testing.assert_allclose(trainer.ustat_pg_table.__self__.table, [0.2, 4 / 7, 3 / 7, 0.8])


def test_a_script_of_ones_own(small, task, tmp_path):
    """Norms weight unless an estimator is named; TRL's own keeps its penalty; other settings are refused."""
    args = RLOOConfig(str(tmp_path), use_cpu=True, bf16=False, beta=0.0, max_steps=1)
    given = {"args": args, "train_dataset": dataset(task), "processing_class": small.tokenizer}
    trainer = EstimatorTrainer(fresh(small).model, letters, **given)
    assert isinstance(trainer, RLOOTrainer)
    assert trainer.ustat_pg_estimator == "norm-weighted"
    trl_trainer(fresh(small), task, tmp_path, "grpo", beta=0.05).train()
    refuses("args is a dict: .* or a trl.GRPOConfig", EstimatorTrainer, None, letters, {"beta": 0})


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo", "luspo", "cispo", "vespo"])
@pytest.mark.parametrize("name", ["grpo", "length-weighted", "norm-weighted"])
def test_grpos_losses_multiply_a_baselines_step_by_one_factor(small, task, tmp_path, name, loss):
    changes = {"epsilon_high": 0.3} if loss == "cispo" else {}
    change, scores, rewards, weights, trainer = one_step(
        small, task, tmp_path, name, loss_type=loss, per_device_train_batch_size=4, **changes
    )
    assert isinstance(trainer, GRPOTrainer)
    tokens = float(weights["length-weighted"].mean())
    factor = {"luspo": 1.0, "dr_grpo": 1 / LONGEST, "cispo": 0.3 / tokens}.get(loss, 1 / tokens)
    is_step(change, gradient(scores, advantages(name, rewards, weights)), factor)


def test_later_iterations_of_grpos_loss_are_clipped_as_trl_does(small, task, tmp_path):
    trainer = trl_trainer(
        fresh(small), task, tmp_path, "length-weighted", loss_type="dapo", num_iterations=2,
        max_steps=2, beta=0.04, learning_rate=5.0,
    )  # fmt: skip
    trainer.train()
    clipped = [row["clip_ratio/region_mean"] for row in trainer.state.log_history[:2]]
    assert clipped[0] == 0 < clipped[1]


UNSCALED = {"scale_rewards": "none"}


@pytest.mark.parametrize(
    ("configuration", "estimator", "changes", "said"),
    [
        (RLOOConfig, "vanilla", {"beta": 0.05}, r"beta is 0.05: .*take beta=0.0"),
        (RLOOConfig, "loo-table:1,2,3", {"beta": 0.0}, "a group of 2 needs as many"),
        (GRPOConfig, "norm-weighted", {}, "scale_rewards is 'group': .* scale_rewards='none'"),
        (GRPOConfig, "grpo", UNSCALED | {"loss_type": "bnpo"}, "factors of their own.* take dapo"),
        (GRPOConfig, "best", UNSCALED, "best takes best_table .* take running-table"),
        (GRPOConfig, "bays:1,1", UNSCALED, "did you mean bayes"),
    ],
)
def test_settings_are_refused_before_a_model_is_loaded(
    tmp_path, configuration, estimator, changes, said
):
    args = configuration(str(tmp_path), use_cpu=True, bf16=False, **changes)
    refuses(said, EstimatorTrainer, "no/model", letters, args, estimator=estimator)


def apart(model, folder):
    """How far each trainer's step is from the theory's, by one of two processes; completions of a step."""
    prompts = tuple(Prompt(f"q{i}", f"{i}+{i}=") for i in range(3))
    task, worst = Task("sums", prompts, letters, LONGEST), {}
    for name in (*LOO, *WEIGHTED):
        change, scores, rewards, weights, _ = one_step(
            load_model(model), task, f"{folder}/{name}", name, num_generations=8,
            per_device_train_batch_size=4,
        )  # fmt: skip
        wanted = gradient(scores, advantages(name, rewards, weights))
        worst[name] = float((change - wanted).norm() / wanted.norm()), len(scores)
    return worst


def test_a_step_of_two_processes(small, tmp_path):
    """A group that lies on two processes is one group still, and the step the same gradient."""
    worst, _ = two_processes(apart, small.name, tmp_path)
    for name, (distance, completions) in worst.items():
        assert distance < 1e-4, name
        assert completions == 16
