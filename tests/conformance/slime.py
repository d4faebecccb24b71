"""slime's own advantages: its rewards as they reach the actor, then the actor's advantages."""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed

from .record import Refused, foreign, lengths

FUNCTION = "slime.backends.megatron_utils.loss.compute_advantages_and_returns"

# The process is the only one of all groups.
torch.distributed.all_reduce = lambda tensor, **_: None
ALONE = {
    "is_pipeline_last_stage": True,
    "get_context_parallel_world_size": 1,
    "get_context_parallel_rank": 0,
    "get_data_parallel_group": None,
}


@cache
def parts():
    """The module of rewards and that of losses."""
    loss = foreign(
        "slime.backends.megatron_utils.loss", "slime.backends.megatron_utils.megatron_patch"
    )
    for name, value in ALONE.items():
        setattr(loss.mpu, name, lambda value=value, **_: value)
    sys.modules["megatron.core"] = SimpleNamespace(mpu=loss.mpu)
    # A decorator of classes, which a stand-in would swallow.
    ray = sys.modules["ray"] = ModuleType("ray")
    ray.remote, ray.__path__, ray.__spec__ = (
        (lambda decorated: decorated),
        [],
        ModuleSpec("ray", None),
    )
    return foreign("slime.ray.rollout"), loss


def advantages(options, batch):
    rollout, loss = parts()
    args = arguments(options, batch)
    if args.advantage_estimator == "ppo":
        raise Refused("a critic's values are wanted")
    samples = [
        SimpleNamespace(get_reward_value=lambda _, value=float(each): value)
        for group in batch
        for each in group
    ]
    owner = SimpleNamespace(custom_reward_post_process_func=None, args=args)
    _, rewards = rollout.RolloutManager._post_process_rewards(owner, samples)
    return by_actor(loss, args, batch, rewards)


def arguments(options, batch):
    flag = {name: value == "true" for name, value in options.items()}
    return SimpleNamespace(
        advantage_estimator=options["advantage_estimator"],
        rewards_normalization=not flag["disable_rewards_normalization"],
        grpo_std_normalization=not flag["disable_grpo_std_normalization"],
        normalize_advantages=flag["normalize_advantages"],
        n_samples_per_prompt=len(batch[0]),
        rollout_batch_size=len(batch),
        use_rollout_logprobs=False,
        kl_coef=0.0,
        gamma=1.0,
        lambd=1.0,
        use_opd=False,
        opd_kl_coef=0.0,
        custom_advantage_function_path=None,
    )


def by_actor(module, args, batch, rewards):
    tokens = [each for group in lengths(batch) for each in group]
    data = {
        "log_probs": [torch.zeros(each) for each in tokens],
        "rewards": rewards,
        "response_lengths": tokens,
        "loss_masks": [torch.ones(each) for each in tokens],
        "total_lengths": [1 + each for each in tokens],
    }
    module.compute_advantages_and_returns(args, data)
    first = torch.stack([each[0] for each in data["advantages"]])
    return [part.tolist() for part in first.split([len(group) for group in batch])]
