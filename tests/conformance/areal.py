"""AReaL's own advantages, by the function that its actor calls."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from .record import foreign, lengths, size_of

FUNCTION = "areal.trainer.ppo.actor.PPOActor._compute_advantages"

actor = foreign("areal.trainer.ppo.actor")
arguments = foreign("areal.api.cli_args")


def norm(options, section, size):
    """A section of the options; None where neither level is on, as where the section is absent."""
    levels = [options[f"actor.{section}.{key}"] for key in ("mean_level", "std_level")]
    if levels == ["none", "none"]:
        return None
    mean, std = (None if level == "none" else level for level in levels)
    more = {
        key: options[f"actor.{section}.{key}"] == "true"
        for key in ("mean_leave1out", "std_unbiased")
        if f"actor.{section}.{key}" in options
    }
    configuration = arguments.NormConfig(mean_level=mean, std_level=std, group_size=size, **more)
    return actor.Normalization(configuration)


def advantages(options, batch):
    size = size_of(batch)
    tokens = torch.tensor([each for group in lengths(batch) for each in group])
    # One token of prompt, and an end that no output reaches.
    width = int(tokens.max()) + 2
    position = torch.arange(width)
    mask = (position > 0) & (position <= tokens[:, None])
    owner = SimpleNamespace(
        config=SimpleNamespace(
            overlong_reward_penalty=False, use_decoupled_loss=False, recompute_logprob=False
        ),
        reward_bias=0.0,
        reward_scaling=1.0,
        reward_clip=20.0,
        reward_norm=norm(options, "reward_norm", size),
        adv_norm=norm(options, "adv_norm", size),
        kl_ctl=0.0,
        kl_estimator=lambda old, ref: old - ref,
        mask_no_eos_with_zero=False,
        discount=1.0,
        gae_lambda=1.0,
    )
    data = {
        "input_ids": torch.zeros(len(tokens), width, dtype=torch.long),
        "rewards": torch.tensor([float(each) for group in batch for each in group]),
        "loss_mask": mask,
        "logprobs": torch.zeros(len(tokens), width),
        "attention_mask": position <= tokens[:, None],
    }
    answer = actor.PPOActor._compute_advantages(owner, data)["advantages"]
    return [part.tolist() for part in answer[:, 0].split(size)]
