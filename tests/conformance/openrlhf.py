"""OpenRLHF's own advantages, by its experience maker."""

import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from .record import Refused, flat, part, size_of

FUNCTION = "openrlhf.trainer.ppo_utils.experience_maker.compute_advantages_and_returns"

shaped = part("openrlhf/models/utils.py", "compute_reward", torch=torch)
maker = part(
    "openrlhf/trainer/ppo_utils/experience_maker.py",
    *("compute_advantages_and_returns", "get_cumulative_returns"),
    torch=torch,
    itertools=itertools,
    logger=MagicMock(),
    apply_length_penalties=lambda *_: None,
    compute_reward=shaped["compute_reward"],
)


def advantages(options, batch):
    name = options["algo.advantage.estimator"]
    if name == "gae":
        raise Refused("a critic's values are wanted")
    size = size_of(batch)
    if size == 1 and name not in ("reinforce", "flash_reinforce"):
        raise Refused(f"{name} requires n_samples_per_prompt > 1")
    plain = options["algo.advantage.no_std_norm"] == "true"
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=size),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=name, gamma=1.0, no_std_norm=plain)
        ),
        reward=SimpleNamespace(clip_range=(-10, 10)),
    )
    rewards, tokens, mask = flat(batch)
    made = SimpleNamespace(
        index=list(range(len(tokens))),
        rewards=rewards,
        kl=torch.zeros_like(mask),
        action_mask=mask,
        info={},
    )
    this = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        kl_ctl=SimpleNamespace(value=0.0),
        advantage_estimator=name,
        get_cumulative_returns=lambda *given: maker["get_cumulative_returns"](None, *given),
    )
    (result,) = maker["compute_advantages_and_returns"](this, [made])
    return [group.tolist() for group in result.advantages[:, 0].split(size)]
