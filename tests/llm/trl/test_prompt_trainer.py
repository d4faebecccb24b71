"""Drawn prompts through TRL: a step is the weighted one of the theory for what was drawn."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from trl import GRPOConfig, RLOOConfig

from tests.support.models import fresh, output_by_hand
from tests.support.trainers import PLAIN, flat
from ustat_pg import estimators
from ustat_pg.llm import PromptSampler, PromptTrainer
from ustat_pg.llm.prompts import Prompt, Task
from ustat_pg.llm.trl.training import dataset
from ustat_pg.validation import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
GROUP, PROMPTS = 4, 6


def first_digit(*, completions, **columns):
    return [float(text[:1] in tuple("01234")) for text in completions]


def task() -> Task:
    prompts = tuple(Prompt(f"q{i}", f"{i}+", {}) for i in range(5))
    return Task("sums", prompts, first_digit, 6)


def trainer(model, folder, sampler, **settings):
    config = {
        **PLAIN, "eval_strategy": "no", "eval_on_start": False, "use_cpu": True, "max_steps": 1,
        "learning_rate": 0.5, "num_generations": GROUP, "max_completion_length": 6, "seed": 0,
        "per_device_train_batch_size": GROUP * PROMPTS // 2, "gradient_accumulation_steps": 2, **settings,
    }  # fmt: skip
    return PromptTrainer(
        sampler=sampler, model=model.model, reward_funcs=first_digit, args=RLOOConfig(str(folder), **config),
        train_dataset=dataset(task()), processing_class=model.tokenizer,
    )  # fmt: skip


def test_a_step_is_weighted_and_teaches_the_law(small, tmp_path) -> None:
    model = fresh(small)
    model.model.double()
    reference, seen = copy.deepcopy(model.model), {}
    sampler = PromptSampler.by_rates([0, 1, 4, 7, 8], 8, seed=6)
    before = sampler.weights
    made = trainer(model, tmp_path, sampler)
    inner = made._calculate_rewards

    def watch(inputs, prompts, completions, ids):
        rewards = inner(inputs, prompts, completions, ids)
        rows = [row["ustat_pg_prompt"] for row in inputs]
        seen.update(rows=rows, prompts=prompts, ids=ids, rewards=rewards[:, 0].double().numpy())
        return rewards

    made._calculate_rewards = watch
    start = flat(model.model)
    made.train()
    change = ((flat(model.model) - start) / 0.5).numpy()
    assert len(seen["rows"]) == GROUP * PROMPTS
    groups = np.array(seen["rows"]).reshape(PROMPTS, GROUP)
    assert (groups == groups[:, :1]).all()
    z = seen["rewards"].reshape(PROMPTS, GROUP)
    assert np.ptp(z, axis=1).any()
    weights = (estimators.grpo(z) * before[groups]).ravel() / z.size
    wanted = 0
    for weight, prompt, output in zip(weights, seen["prompts"], seen["ids"], strict=True):
        ids = small.tokenizer(prompt)["input_ids"]
        wanted = wanted + weight * output_by_hand(reference, ids, list(output))[1]
    np.testing.assert_allclose(change, wanted, atol=1e-6 * np.abs(wanted).max())
    counted = sampler.state_dict()["seen"]
    assert sum(counted[1]) == 5 * 8 + GROUP * PROMPTS
    assert sum(counted[0]) == 20 + z.sum()


def test_what_is_refused(small, tmp_path) -> None:
    with pytest.raises(InputError, match="data set of 2 rows"):
        trainer(small, tmp_path, PromptSampler([0.5, 0.5]))
    with pytest.raises(InputError, match="RLOOConfig"):
        PromptTrainer(
            sampler=PromptSampler([1.0]),
            args=GRPOConfig(str(tmp_path), use_cpu=True, bf16=False),
            model="none",
        )


def test_a_resumed_training_must_not_skip_draws(small, tmp_path) -> None:
    made = trainer(fresh(small), tmp_path, PromptSampler.by_rates([0, 1, 4, 7, 8], 8, seed=6))
    with pytest.raises(InputError, match="ignore_data_skip=True"):
        made.train(resume_from_checkpoint=True)
