"""nanochat's own advantages, by the lines of its script that work them out."""

import torch

from .losses import MICRO_BATCHES
from .record import passage

FUNCTION = "scripts.chat_rl.get_batch"
LOSS = "scripts.chat_rl"

LINES = compile(
    passage("scripts/chat_rl.py", "rewards = torch.tensor(rewards", "advantages = rewards - mu"),
    FUNCTION,
    "exec",
)


def advantages(options, batch):
    answers = []
    for group in batch:
        names = {"torch": torch, "rewards": group, "device": "cpu"}
        exec(LINES, names)
        answers.append(names["advantages"].tolist())
    return answers


OBJECTIVE = compile(
    passage("scripts/chat_rl.py", "pg_obj = (logp * ", "loss = -pg_obj"), LOSS, "exec"
)


def loss(options, rollouts):
    """Its passes are micro-batches, of one group or of several."""
    total = 0.0
    for each in rollouts.micro_batches():
        names = {
            "logp": each.own * each.mask,
            "advantages": each.advantages,
            "targets": each.mask.long() - 1,
            "num_passes": MICRO_BATCHES,
            "examples_per_rank": 1,
        }
        exec(OBJECTIVE, names)
        total = total + names["loss"]
    return total
