"""The advantages and the loss of TRL's RLOOTrainer; the installed release."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from trl import RLOOTrainer

from .losses import MICRO_BATCHES
from .record import passage
from .trl import rloo as advantages

FUNCTION = "trl.RLOOTrainer._generate_and_score_completions"
LOSS = "trl.RLOOTrainer._compute_loss"

__all__ = ["FUNCTION", "LOSS", "advantages", "loss", "penalised"]

PENALTY = passage(
    "trl/trainer/rloo_trainer.py",
    "per_token_kl = old_per_token_logps - ref_per_token_logps",
    "rewards = rewards - self.beta * kl",
)


def loss(options, rollouts):
    """The mean over micro-batches, as transformers' Trainer takes it."""
    low, high = options["epsilon"], options["epsilon_high"]
    made = SimpleNamespace(
        epsilon_low=float(low),
        epsilon_high=float(low if high == "none" else high),
        aux_loss_enabled=False,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(reduce=lambda x, **_: x, gather=lambda x: x),
        _metrics=MagicMock(),
    )
    total = 0.0
    for each in rollouts.micro_batches():
        made._get_per_token_logps_and_entropies = lambda *_, each=each, **__: (
            each.own,
            each.entropies,
            None,
        )
        inputs = {
            "prompt_ids": each.mask[:, :1].long(),
            "prompt_mask": each.mask[:, :1],
            "completion_ids": each.mask.long(),
            "completion_mask": each.mask,
            "advantages": each.advantages,
            "old_logps": (each.old * each.mask).sum(1),
        }
        total = total + RLOOTrainer._compute_loss(made, None, inputs)
    return total / MICRO_BATCHES


def penalised(options, rollouts):
    names = {
        "self": SimpleNamespace(beta=float(options["beta"])),
        "old_per_token_logps": rollouts.old,
        "ref_per_token_logps": rollouts.reference,
        "completion_mask": rollouts.mask,
        "gather": lambda x: x,
        "rewards": torch.zeros(len(rollouts.mask)),
    }
    exec(PENALTY, names)
    return names["rewards"]
