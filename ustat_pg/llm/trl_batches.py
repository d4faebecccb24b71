"""The facts that a monitor needs about TRL's trainers and their batches."""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Any

import numpy as np
import torch
from transformers import Trainer

from ..noise.alarms import TOLERANCE
from ..validation import InputError

_SIZES = {"tensor": "get_tp_size", "context": "get_cp_size", "sequence": "get_sp_size"}
"""Attributes of transformers' trainer, by what processes may split an output by."""
_SCALED = {"group": "std-ddof1", True: "std-ddof1", "none": "dr-grpo", False: "dr-grpo"}
"""Tables by counts of GRPO's advantages, by ``scale_rewards``."""


def array(values: Any) -> Any:
    return None if values is None else values.detach().cpu().double().numpy()


def caller() -> Any:
    """The trainer that calls its callbacks, which are not given it."""
    frame = sys._getframe(1)
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer):
            return trainer
        frame = frame.f_back  # type: ignore[assignment]
    raise InputError("no trainer calls it: give it to one as a callback")


def refuse_shared_outputs(trainer: Any) -> None:
    """Refuse a trainer whose processes split an output between them."""
    for name, size in _SIZES.items():
        if getattr(trainer, size, lambda: 1)() > 1:
            raise InputError(
                f"processes share outputs, by {name} parallelism: each must have its own"
            )


def option(trainer: Any, name: str, default: Any = None) -> Any:
    """An option as the trainer has it, who fills in what its arguments leave open (``epsilon_high``)."""
    return getattr(trainer, name, getattr(trainer.args, name, default))


def population(trainer: Any) -> int | None:
    """The prompts of a data set that TRL's own sampler passes over in shuffled epochs; None of others."""
    from trl import GRPOTrainer, RLOOTrainer

    own = {GRPOTrainer._get_train_sampler, RLOOTrainer._get_train_sampler}
    if type(trainer)._get_train_sampler not in own or not hasattr(trainer.train_dataset, "__len__"):
        return None
    return len(trainer.train_dataset)


def mixes(trainer: Any) -> bool:
    """Whether a loss has a term that mixes the completions of a micro-batch."""
    return bool(
        option(trainer, "top_entropy_quantile", 1.0) < 1
        or option(trainer, "entropy_coef", 0.0)
        or option(trainer, "use_adaptive_entropy", False)
        # A mixture of experts is balanced over the tokens of a micro-batch.
        or getattr(trainer, "aux_loss_enabled", False)
    )


def kinds(trainer: Any) -> tuple[str, bool]:
    """The loss's name, and whether advantages may be leave-one-out, up to a factor, of whole scores."""
    from trl import GRPOTrainer, RLOOTrainer

    whole = not option(trainer, "mask_truncated_completions")
    whole = whole and option(trainer, "num_iterations") == 1
    if isinstance(trainer, RLOOTrainer):
        return "rloo", whole and not option(trainer, "normalize_advantages")
    if not isinstance(trainer, GRPOTrainer):
        raise InputError(
            f"the trainer is a {type(trainer).__name__}: GRPOTrainer and RLOOTrainer are known"
        )
    loss = str(option(trainer, "loss_type"))
    unscaled = option(trainer, "scale_rewards") in ("none", False) and not option(trainer, "beta")
    return loss, whole and unscaled and loss in ("luspo", "dr_grpo", "dapo")


def prompts_of(inputs: Any) -> Any:
    """A number for the prompt of each completion, from its tokens."""
    ids, masks = inputs["prompt_ids"].cpu().numpy(), inputs["prompt_mask"].cpu().numpy()
    digests = [
        hashlib.blake2b(row[mask.astype(bool)].astype(np.int64).tobytes(), digest_size=7).digest()
        for row, mask in zip(ids, masks, strict=True)
    ]
    return np.array([int.from_bytes(digest, "big") for digest in digests])


def movable(batches: list[Any]) -> bool:
    """Whether all that a generation holds are rows of completions, and numbers of all."""
    rows = len(batches[0]["completion_ids"])
    return all(
        value is None
        or (isinstance(value, torch.Tensor) and (not value.ndim or len(value) == rows))
        for batch in batches
        for value in batch.values()
    )


def own_table(trainer: Any) -> str | None:
    """The table by counts that a trainer's advantages are of rewards 0 and 1; None where they are none."""
    from trl import RLOOTrainer

    from ..predictions import count_table

    named = getattr(trainer, "ustat_pg_estimator", None)
    if named is None and isinstance(trainer, RLOOTrainer):
        named = None if option(trainer, "normalize_advantages") else "rloo"
    elif named is None:
        named = _SCALED.get(option(trainer, "scale_rewards"))
    try:
        count_table(str(named), trainer.num_generations)
    except InputError:
        return None
    return str(named)


def sort(batches: list[Any], prompts: Any, roll: int) -> Any:
    """Sort the completions of some batches by prompt, in place, and turn them round by some places.

    Returns:
        the prompt of each completion, as they are now.
    """
    order = np.roll(np.argsort(prompts, kind="stable"), roll)
    count = len(prompts) // len(batches)
    for name, first in list(batches[0].items()):
        if isinstance(first, torch.Tensor) and first.ndim:
            whole = torch.cat([batch[name] for batch in batches])
            parts = whole[torch.as_tensor(order, device=whole.device)].split(count)
            for batch, part in zip(batches, parts, strict=True):
                batch[name] = part
    return prompts[order]


def shares(batches: list[Any], prompts: Any, size: int) -> list[torch.Tensor] | None:
    """The contribution of completions to φ, by their squared norms, for each batch; NaN where unknown.

    None where the advantages of a group do not sum to 0: they are not leave-one-out.
    """
    advantages = torch.cat([batch["advantages"] for batch in batches]).double()
    found = torch.full_like(advantages, math.nan)
    for prompt in np.unique(prompts):
        rows = torch.as_tensor(np.flatnonzero(prompts == prompt), device=advantages.device)
        values = advantages[rows]
        if len(values) != size:
            continue
        if abs(values.sum()) > TOLERANCE * len(values) * values.abs().max():
            return None
        # The others' variance, which is independent of completion i, over Aᵢ².
        squares = (values * ((size - 1) / size)).square()
        spread = squares.sum() - squares * (size / (size - 1))
        share = spread.clamp(min=0) / (values.square() * max(size - 2, 1))
        found[rows] = share.nan_to_num(0.0, 0.0, 0.0)
    return list(found.split([len(batch["advantages"]) for batch in batches]))
