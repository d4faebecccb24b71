"""verl's own advantages, by the function that its trainer calls."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from .record import Refused, foreign, padded, summed

FUNCTION = "verl.trainer.ppo.ray_trainer.compute_advantage"

trainer = foreign("verl.trainer.ppo.ray_trainer")


def advantages(options, batch):
    return several(options, [[[each] for each in group] for group in batch], (1.0,))


def several(options, batch, weights):
    name = options["algorithm.adv_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    sizes = [len(group) for group in batch]
    rewards, mask = padded(summed(batch, weights))
    columns = np.array([each for group in batch for each in group], dtype=float).T
    scores = {f"score {k}": column for k, column in enumerate(columns)}
    data = SimpleNamespace(
        batch={
            "response_mask": mask,
            "token_level_rewards": rewards,
            "sum_pi_squared": torch.full_like(mask, 0.5),
            "old_log_probs": torch.full_like(mask, -0.5),
            "prompts": mask[:, :0],
            "attention_mask": mask.long(),
        },
        non_tensor_batch={
            "uid": np.repeat(np.arange(len(batch)).astype(str), sizes).astype(object),
            **scores,
        },
    )
    if name == "remax":
        data.batch["reward_baselines"] = torch.full((len(rewards),), 0.25)
    flag = options["algorithm.norm_adv_by_std_in_grpo"] == "true"
    try:
        trainer.compute_advantage(
            data,
            adv_estimator=trainer.AdvantageEstimator(name),
            norm_adv_by_std_in_grpo=flag,
            config=trainer.AlgoConfig(
                norm_adv_by_std_in_grpo=flag,
                gdpo_reward_keys=[*scores],
                gdpo_reward_weights=[*weights],
            ),
        )
    except (ValueError, AssertionError, KeyError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    first = data.batch["advantages"][:, 0]
    return [part.tolist() for part in first.split(sizes)]
