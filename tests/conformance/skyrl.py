"""SkyRL's own advantages, by the function that its trainer calls."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
from sphinx.ext.autodoc.mock import mock

from .record import Refused, padded, part, passage

FUNCTION = "skyrl.backends.skyrl_train.utils.ppo_utils.compute_advantages_and_returns"

FUNCTIONS = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "reinforce++": "compute_reinforce_plus_plus_outcome_advantage",
    "maxrl": "compute_maxrl_advantage",
}

WHITENING = passage(
    "skyrl/train/trainer.py",
    "if self.cfg.trainer.algorithm.advantage_batch_normalize",
    'data["advantages"] = (advantages - mean) * rstd',
)

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
    whitens = options["trainer.algorithm.advantage_batch_normalize"] == "true"
    if whitens and name == "maxrl":
        raise Refused("no row has the form of means that are divided by and whitened")
    sizes = [len(group) for group in batch]
    if whitens and len({*sizes}) > 1:
        raise Refused("its generator makes groups of one size")
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
    if whitens:
        data = {"advantages": result}
        config = SimpleNamespace(
            trainer=SimpleNamespace(algorithm=SimpleNamespace(advantage_batch_normalize=True))
        )
        this = SimpleNamespace(cfg=config)
        exec(WHITENING, {"self": this, "data": data, "advantages": result, "response_mask": mask})
        result = data["advantages"]
    return [group.tolist() for group in result[:, 0].split(sizes)]
