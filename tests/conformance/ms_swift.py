"""ms-swift's own advantages, by the function that all its backends call."""

import torch

from .record import Refused, foreign, size_of

FUNCTION = "swift.rl_core.advantage.compute_advantages"

module = foreign("swift.rl_core.advantage")

AUTO = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}
"""What `RLHFArguments._init_grpo` takes where scale_rewards is not given."""


def advantages(options, batch):
    return several(options, [[[each] for each in group] for group in batch], (1.0,))


def several(options, batch, weights):
    size = size_of(batch)
    if size == 1:
        raise Refused("num_generations must be greater than 1 for GRPO")
    estimator, scale = options["advantage_estimator"], options["scale_rewards"]
    rewards = torch.tensor([each for group in batch for each in group]).float()
    answer, _ = module.compute_advantages(
        rewards,
        torch.tensor(weights),
        size,
        advantage_estimator=estimator,
        scale_rewards=AUTO[estimator] if scale == "auto" else scale,
    )
    return [part.tolist() for part in answer.split(size)]
