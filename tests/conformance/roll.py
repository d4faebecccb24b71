"""ROLL's own advantages: its rewards after normalisation, then its advantages."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from .record import Refused, flat, foreign, size_of

FUNCTION = "roll.utils.functionals.compute_advantage"

module = foreign("roll.utils.functionals")


def advantages(options, batch):
    name = options["adv_estimator"]
    if name in ("gae", "gigpo", "step_reinforce"):
        raise Refused("a critic's values, or an agent's steps, are wanted")
    norms = [options[key] for key in ("norm_mean_type", "norm_std_type")]
    if "running" in norms:
        raise Refused("statistics of earlier steps are wanted")
    size = size_of(batch)
    mean, std = (None if norm == "none" else norm for norm in norms)
    configuration = SimpleNamespace(
        adv_estimator=name,
        norm_mean_type=mean,
        norm_std_type=std,
        reward_clip=None,
        actor_infer=SimpleNamespace(generating_args=SimpleNamespace(num_return_sequences=size)),
    )
    rewards, tokens, mask = flat(batch)
    data = SimpleNamespace(batch={"response_level_rewards": rewards}, meta_info={})
    try:
        module.reward_postprocess(data, configuration, {})
        spread = torch.zeros_like(mask)
        spread[torch.arange(len(tokens)), tokens - 1] = data.batch["response_level_rewards"]
        data.batch["token_level_rewards"] = spread
        module.compute_advantage(
            data,
            1.0,
            1.0,
            name,
            whiten_advantages=options["whiten_advantages"] == "true",
            response_mask=mask,
        )
    except (RuntimeError, IndexError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return [part.tolist() for part in data.batch["advantages"][:, 0].split(size)]
