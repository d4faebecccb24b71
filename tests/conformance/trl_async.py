"""The advantages of TRL's AsyncGRPOTrainer, by its worker's own scoring of a group; the installed release."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
from accelerate import PartialState

from .record import foreign

FUNCTION = "trl.experimental.async_grpo.async_rollout_worker.AsyncRolloutWorker._score_group"

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
