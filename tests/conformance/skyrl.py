"""SkyRL's own advantages, by the function that its trainer calls."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
from sphinx.ext.autodoc.mock import mock

from .record import Refused, padded, part

FUNCTION = "skyrl.backends.skyrl_train.utils.ppo_utils.compute_advantages_and_returns"

FUNCTIONS = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "reinforce++": "compute_reinforce_plus_plus_outcome_advantage",
    "maxrl": "compute_maxrl_advantage",
}

known = part("skyrl/backends/skyrl_train/utils/torch_utils.py", "masked_mean", torch=torch)
utils = part(
    "skyrl/backends/skyrl_train/utils/ppo_utils.py",
    *("compute_advantages_and_returns", "masked_var", "masked_whiten", *FUNCTIONS.values()),
    **known,
    np=np,
    defaultdict=defaultdict,
    AdvantageEstimatorRegistry=SimpleNamespace(get=lambda name: utils[FUNCTIONS[name]]),
)


def advantages(options, batch):
    name = options["trainer.algorithm.advantage_estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    if options["trainer.algorithm.advantage_batch_normalize"] == "true":
        raise Refused("the trainer normalises, among other things")
    sizes = [len(group) for group in batch]
    rewards, mask = padded(batch)
    with mock(["loguru"]):
        result, _ = utils["compute_advantages_and_returns"](
            rewards,
            mask,
            np.repeat(np.arange(len(batch)), sizes),
            name,
            None,
            grpo_norm_by_std=options["trainer.algorithm.grpo_norm_by_std"] == "true",
        )
    return [group.tolist() for group in result[:, 0].split(sizes)]
