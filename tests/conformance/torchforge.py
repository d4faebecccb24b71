"""The own advantages of torchforge's GRPO app, and its loss."""

import asyncio
from types import SimpleNamespace
from typing import Any

import torch

from .losses import MICRO_BATCHES
from .record import part

FUNCTION = "apps.grpo.main.ComputeAdvantages.compute"
LOSS = "apps.grpo.main.simple_grpo_loss"
FILE = "apps/grpo/main.py"

made = part(
    FILE,
    *("ComputeAdvantages", "simple_grpo_loss"),
    torch=torch,
    ForgeActor=object,
    Group=Any,
    endpoint=lambda function: function,
    compute_logprobs=lambda logprobs, response: logprobs,
)


def advantages(options, batch):
    groups = [[SimpleNamespace(reward=float(each)) for each in group] for group in batch]
    actor = made["ComputeAdvantages"]()
    return [asyncio.run(actor.compute(group)) for group in groups]


def loss(options, rollouts):
    """The batches of the ranks are averaged."""
    losses = [
        made["simple_grpo_loss"](
            each.own,
            None,
            each.reference,
            each.advantages[:, None],
            each.mask,
            float(options["beta"]),
        )
        for each in rollouts.micro_batches()
    ]
    return sum(losses) / MICRO_BATCHES
