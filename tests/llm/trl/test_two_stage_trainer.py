"""Groups of two stages through TRL: the mean step is the true gradient, at the outputs of a fixed group."""

import copy

import numpy as np
import pytest
import torch
from accelerate.utils import gather_object
from trl import GRPOConfig

from tests.support.commands import two_processes
from tests.support.models import OUTPUTS, every_output, fresh, output_by_hand, save_tiny
from tests.support.refusals import refuses
from tests.support.trainers import flat, trl_trainer
from ustat_pg import estimators
from ustat_pg.llm import TwoStageTrainer
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.trl.training import dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


def graded(*, completions, **columns):
    """By the first letter and the length: four values."""
    return [1.0 * text.startswith("a") + 0.5 * (len(text) == 2) for text in completions]


@pytest.fixture(scope="module")
def enumerable(tmp_path_factory):
    """A model of four symbols, of which one ends: 13 outputs of at most two tokens."""
    return load_model(str(save_tiny(tmp_path_factory.mktemp("models") / "four", characters="ab")))


@pytest.fixture(scope="module")
def task():
    return Task(
        "graded", tuple(Prompt(f"q{i}", text, {}) for i, text in enumerate(("a", "ba"))), graded, 2
    )


PILOT, MORE, PROMPTS = 3, 2, 240


def mean_step(model, task, folder, name, repeats=14):
    """Steps along the true gradient and along random directions, over the true ones: their z-scores, and
    the mean along the gradient. All generations are of one policy.
    """
    law, scores, _ = every_output(
        model.model, [tuple(model.tokenizer(p.text)["input_ids"]) for p in task.prompts]
    )
    texts = [model.tokenizer.decode(output, skip_special_tokens=True) for output in OUTPUTS]
    rewards = np.array(graded(completions=texts))
    truth = np.einsum("xy,xyd,y->d", law, scores, rewards) / len(task.prompts)
    trainer = trl_trainer(
        fresh(model), task, folder, name, budget=PILOT * PROMPTS, num_generations=PILOT,
        max_completion_length=2, per_device_train_batch_size=PILOT * PROMPTS // 2,
    )  # fmt: skip
    trained, rows, draw = trainer.model, list(dataset(task)), np.random.default_rng(1)
    trained.train()
    steps = []
    for _ in range(repeats):
        batch = [rows[i] for i in draw.integers(len(rows), size=PROMPTS) for _ in range(PILOT)]
        trained.zero_grad()
        for trainer._step in range(2):
            trainer.compute_loss(trained, trainer._prepare_inputs(batch)).div(2).backward()
        steps.append(-torch.cat([p.grad.flatten() for p in trained.parameters()]).double().numpy())
    directions = np.stack([truth, *draw.standard_normal((5, len(truth)))])
    along = np.array(steps) @ directions.T / (directions @ truth)
    error = along.std(axis=0, ddof=1) / repeats**0.5
    return (along.mean(axis=0) - 1) / error, along.mean(axis=0)[0], trainer._metrics["train"]


def test_the_mean_step_is_the_gradient_at_the_outputs_of_a_fixed_group(enumerable, task, tmp_path):
    z, along, metrics = mean_step(enumerable, task, tmp_path, f"two-stage:{MORE}")
    assert np.abs(z).max() < 4.5, z
    assert abs(along - 1) < 0.1
    # The outputs of all steps are those of TRL's batches but for the last step's chance.
    drawn, prompts = (metrics[f"completions/{name}"] for name in ("drawn", "prompts"))
    assert np.mean(drawn) == pytest.approx(PILOT * PROMPTS, rel=0.02)
    silent = np.array(metrics["frac_reward_zero_std"])
    assert drawn == [
        round(b * (PILOT + MORE * (1 - s))) for b, s in zip(prompts, silent, strict=True)
    ]
    assert 0.02 < silent.mean() < 0.9


def test_what_is_not_corrected_is_another_step(enumerable, task, tmp_path):
    z, along, _ = mean_step(enumerable, task, tmp_path, f"two-stage-uncorrected:{MORE}")
    assert z[0] < -4.5, z
    assert along < 0.9


def one_step(model, task, folder, **settings):
    """The parameters' change over the rate, that of the theory for what was drawn, and the trainer."""
    trained = fresh(model)
    trained.model.double()
    reference, calls = copy.deepcopy(trained.model), []
    trainer = trl_trainer(
        trained, task, folder, f"two-stage:{MORE}", num_generations=PILOT, max_steps=1, **settings
    )
    inner = trainer._calculate_rewards

    def watch(inputs, prompts, completions, ids):
        rewards = inner(inputs, prompts, completions, ids)
        outputs = gather_object(
            [(model.tokenizer(p)["input_ids"], list(i)) for p, i in zip(prompts, ids, strict=True)]
        )
        calls.append((rewards[:, 0].double().numpy(), outputs))
        return rewards

    trainer._calculate_rewards = watch
    before = flat(trained.model)
    trainer.train()
    change = ((flat(trained.model) - before) / 0.5).numpy()
    drawn = next(row for row in trainer.state.log_history if "completions/prompts" in row)
    number = int(float(drawn["completions/prompts"]))
    (pilots, outputs), *rest = calls
    groups = [(pilots[i * PILOT :][:PILOT], outputs[i * PILOT :][:PILOT]) for i in range(number)]
    place, wanted = 0, 0
    for z, group in groups:
        if len(set(z)) > 1:
            z = np.append(z, rest[0][0][place : place + MORE])
            group = [*group, *rest[0][1][place : place + MORE]]
            assert len({tuple(prompt) for prompt, _ in group}) == 1
            place += MORE
        for weight, output in zip(estimators.two_stage(z, pilot=PILOT), group, strict=True):
            wanted = wanted + weight * output_by_hand(reference, *output)[1] / (len(z) * number)
    assert 0 < place < number * MORE
    return change, wanted, trainer


def test_a_step_is_that_of_the_theory_for_what_was_drawn(small, tmp_path):
    """With sequences that micro-batches do not divide, and prompts of several lengths."""
    prompts = tuple(Prompt(f"q{i}", f"{i}+" * (1 + i % 3), {}) for i in range(10))
    sums = Task("sums", prompts, first_digit, 6)
    change, wanted, trainer = one_step(
        small, sums, tmp_path, budget=30, per_device_train_batch_size=6, seed=3
    )
    np.testing.assert_allclose(change, wanted, atol=1e-6 * np.abs(wanted).max())
    assert len(trainer._logs["advantages"]) == len(trainer._logs["completion"])


def first_digit(*, completions, **columns):
    return [float(text[:1] in tuple("01234")) for text in completions]


def apart(model, folder):
    """How far a step is from the theory's, by one of two processes, and its size."""
    task = Task("sums", tuple(Prompt(f"q{i}", f"{i}+", {}) for i in range(10)), first_digit, 6)
    change, wanted, _ = one_step(
        load_model(model), task, folder, budget=30, per_device_train_batch_size=15
    )
    return abs(change - wanted).max(), abs(wanted).max()


def test_a_step_of_two_processes(small, tmp_path):
    (difference, size), _ = two_processes(apart, small.name, tmp_path / "run")
    assert difference < 1e-4 * size


def test_groups_without_signal_or_reward_do_not_move_the_policy(small, tmp_path):
    def picky(*, prompts, completions, **columns):
        scored = first_digit(completions=completions)
        return [
            None if p == "1+" and i % 2 else 1.0 if p == "2+" else z
            for i, (p, z) in enumerate(zip(prompts, scored, strict=True))
        ]

    both = Task("picky", (Prompt("a", "1+"), Prompt("b", "2+")), picky, 6)
    model = fresh(small)
    before = flat(model.model)
    trainer = trl_trainer(
        model, both, tmp_path, "two-stage:2", budget=6, num_generations=3, max_steps=2
    )
    trainer.train()
    assert torch.equal(before, flat(model.model))
    assert float(trainer.state.log_history[0]["frac_reward_zero_std"]) == 1


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("two-stage:0", {}, "more is 0"),
        ("two-stage", {}, "more is None"),
        ("two-stage:2", {"beta": 0.05}, "beta is 0.05: the advantages of two stages"),
    ],
)
def test_bad_settings_are_refused(small, task, tmp_path, name, changes, message):
    refuses(message, trl_trainer, fresh(small), task, tmp_path, name, **changes)


def test_another_loss_or_baseline_is_refused(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    refuses("loss_type is 'dapo': .* trl.RLOOConfig", TwoStageTrainer, None, graded, args, more=2)
    refuses("estimator is 'std'", TwoStageTrainer, None, graded, more=2, estimator="std")
