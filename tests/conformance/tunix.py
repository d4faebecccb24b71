"""Tunix's own advantages, by the functions that its registry holds."""

import numpy as np

from .record import Refused, foreign, size_of

FUNCTION = "tunix.rl.algo_core.compute_advantages"

core = foreign("tunix.rl.algo_core")


def advantages(options, batch):
    size = size_of(batch)
    if size == 1:
        raise Refused("num_generations must be greater than 1")
    function = core.function_registry.get_advantage_estimator(options["advantage_estimator"])
    rewards = np.array([each for group in batch for each in group], dtype=np.float32)
    answer = np.asarray(function(rewards=rewards, num_generations=size))
    return answer.reshape(-1, size).tolist()
