"""EasyR1's own advantages, by the function that its trainer calls."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from .record import Refused, foreign, padded

FUNCTION = "verl.trainer.ray_trainer.compute_advantage"

trainer = foreign("verl.trainer.ray_trainer", "verl.workers.fsdp_workers")


def advantages(options, batch):
    name = options["algorithm.adv_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    sizes = [len(group) for group in batch]
    rewards, mask = padded(batch)
    index = np.repeat(np.arange(len(batch)).astype(str), sizes).astype(object)
    data = SimpleNamespace(
        batch={"token_level_rewards": rewards, "response_mask": mask},
        non_tensor_batch={"uid": index},
    )
    if name == "remax":
        data.batch["reward_baselines"] = torch.full((len(rewards),), 0.25)
    try:
        trainer.compute_advantage(data, name)
    except (AssertionError, RuntimeError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return [part.tolist() for part in data.batch["advantages"][:, 0].split(sizes)]
