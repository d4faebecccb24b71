"""The advantages of TRL's AsyncGRPOTrainer, by its worker's own scoring of a group; the installed release."""

import asyncio
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import PartialState

from .losses import MICRO_BATCHES
from .record import foreign, passage

FUNCTION = "trl.experimental.async_grpo.async_rollout_worker.AsyncRolloutWorker._score_group"
LOSS = "trl.experimental.async_grpo.async_grpo_trainer.AsyncGRPOTrainer.compute_loss"

PartialState(cpu=True)
worker = foreign("trl.experimental.async_grpo.async_rollout_worker")


def advantages(options, batch):
    return [scored(group) for group in batch]


def scored(group):
    count = len(group)
    made = SimpleNamespace(
        reward_funcs=[lambda **_: [float(each) for each in group]],
        reward_func_names=["reward"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    sequence = SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])
    rollouts = SimpleNamespace(
        prompts=["p"] * count,
        completions=["c"] * count,
        completions_ids=[[1]] * count,
        completions_sequences=[[sequence]] * count,
        reward_kwargs={},
        env_rewards=[None] * count,
        rollout_rewards=[None] * count,
        tool_call_counts=[0] * count,
        tool_failure_counts=[0] * count,
        model_version=0,
        group_id=0,
    )
    [owner] = [each for each in vars(worker).values() if hasattr(each, "_score_group")]
    samples = asyncio.run(owner._score_group(made, rollouts))
    return np.array([each.advantage for each in samples]).tolist()


LINES = passage(
    "trl/experimental/async_grpo/async_grpo_trainer.py",
    "log_ratio = log_probs - old_log_probs",
    "loss = loss / self.current_gradient_accumulation_steps",
)


def loss(options, rollouts):
    """A micro-batch's tokens are those that its collator counts, of all ranks."""
    low, high = options["epsilon"], options["epsilon_high"]
    made = SimpleNamespace(
        epsilon_low=float(low),
        epsilon_high=float(low if high == "none" else high),
        accelerator=SimpleNamespace(num_processes=1),
        current_gradient_accumulation_steps=MICRO_BATCHES,
    )
    total = 0.0
    for each in rollouts.micro_batches():
        names = {
            "torch": torch,
            "self": made,
            "log_probs": torch.cat(each.apart("own")),
            "old_log_probs": torch.cat(each.apart("old")),
            "advantages": torch.repeat_interleave(each.advantages, torch.tensor(each.lengths)),
            "inputs": {"global_n_tokens": torch.full((1,), float(sum(each.lengths)))},
        }
        exec(LINES, names)
        total = total + names["loss"]
    return total
