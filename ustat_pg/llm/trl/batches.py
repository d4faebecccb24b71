"""Functions that read what a monitor needs from TRL's trainers and their batches."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer

from ...noise.alarms import TOLERANCE
from ...validation import InputError

_SIZES = {"tensor": "get_tp_size", "context": "get_cp_size", "sequence": "get_sp_size"}
"""Attributes of transformers' trainer, by the ways in which processes may split an output."""
_SCALED = {"group": "std-ddof1", True: "std-ddof1", "none": "dr-grpo", False: "dr-grpo"}
"""Tables by counts of GRPO's advantages, by ``scale_rewards``."""


def array(values: Any) -> Any:
    return None if values is None else values.detach().cpu().double().numpy()


def caller() -> tuple[Any, Path | None]:
    """The trainer that calls its callbacks, and the folder of the checkpoint that it resumes from."""
    # Transformers gives callbacks the arguments, state, model and loaders, but neither of these two: they are
    # only in the frames of train().
    trainer, frame = None, sys._getframe(1)
    while frame is not None:
        # Reading a frame's values keeps them alive, so the callers of train() are not read.
        names = {"self"} if trainer is None else {"self", "resume_from_checkpoint"}
        if names <= set(frame.f_code.co_varnames):
            own, folder = map(frame.f_locals.get, ("self", "resume_from_checkpoint"))
            if trainer is None and isinstance(own, Trainer):
                trainer = own
            if trainer is not None and own is trainer and isinstance(folder, str | Path):
                return trainer, Path(folder)
        frame = frame.f_back  # type: ignore[assignment]
    if trainer is None:
        raise InputError("no trainer calls it: give it to a trainer as a callback")
    return trainer, None


def refuse_shared_outputs(trainer: Any) -> None:
    """Raise an error if the trainer's processes split an output between them."""
    for name, size in _SIZES.items():
        if getattr(trainer, size, lambda: 1)() > 1:
            raise InputError(
                f"processes share outputs, by {name} parallelism: each process must have its own outputs"
            )


def option(trainer: Any, name: str, default: Any = None) -> Any:
    """An option of the trainer, which fills in arguments that are None (``epsilon_high``)."""
    return getattr(trainer, name, getattr(trainer.args, name, default))


def population(trainer: Any) -> int | None:
    """The prompts of a data set that TRL's own sampler uses in shuffled epochs; None for other samplers."""
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
        # The load of a mixture of experts is balanced over the tokens of a micro-batch.
        or getattr(trainer, "aux_loss_enabled", False)
    )


def kinds(trainer: Any) -> tuple[str, bool]:
    """The loss's name, and whether its advantages may be leave-one-out, up to a factor, with whole scores."""
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
    """Whether a generation contains only rows of completions, and numbers of all."""
    rows = len(batches[0]["completion_ids"])
    return all(
        value is None
        or (isinstance(value, torch.Tensor) and (not value.ndim or len(value) == rows))
        for batch in batches
        for value in batch.values()
    )


def own_table(trainer: Any) -> str | None:
    """The table by counts of a trainer's advantages for rewards 0 and 1; None if they are not a table."""
    from trl import RLOOTrainer

    from ...predictions import count_table

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


def names_of(inputs: Any, rows: bool) -> tuple[Any, Any]:
    """The prompt of each completion, and its ``group_id`` if the batch has it.

    Arguments:
        rows: whether groups are used as prompts, if rows of a data set are drawn in shuffled epochs.
    """
    groups = inputs.get("group_id")
    if groups is not None and (rows or "prompt_ids" not in inputs):
        return groups.cpu().numpy(), None
    return prompts_of(inputs), groups


def weights_of(trainer: Any, inputs: Any) -> Any:
    """The importance weight of each whole completion in the loss, (n,); None if tokens have weights."""
    weights = inputs.get("importance_sampling_ratio")
    mode = str(option(trainer, "vllm_importance_sampling_mode"))
    if weights is None or not mode.startswith("sequence") or kinds(trainer)[0] == "vespo":
        return None
    return weights[:, 0]


def deal(batches: list[Any], groups: Any, parts: int) -> Any:
    """Sort the completions of several batches by group, in place, and deal them out among so many batches.

    Then pairs of one group lie in two of these batches, and pairs from other batches belong to two groups.

    Returns:
        the group of each completion after sorting.
    """
    order, count = np.argsort(groups, kind="stable"), len(groups) // len(batches)
    # The last batches get the rest.
    ends = np.arange(1, max(len(batches) // parts, 1)) * parts * count
    order = np.concatenate([block.reshape(count, -1).T.ravel() for block in np.split(order, ends)])
    for name, first in list(batches[0].items()):
        if isinstance(first, torch.Tensor) and first.ndim:
            whole = torch.cat([batch[name] for batch in batches])
            split = whole[torch.as_tensor(order, device=whole.device)].split(count)
            for batch, part in zip(batches, split, strict=True):
                batch[name] = part
    return groups[order]


def leave_one_out(batches: list[Any], groups: Any, size: int) -> bool:
    """Whether the advantages of whole groups sum to 0, like leave-one-out advantages."""
    advantages = torch.cat([batch["advantages"] for batch in batches])
    if advantages.ndim > 1:
        return False
    values, places = array(advantages), np.unique(groups, return_inverse=True)[1]
    most = np.zeros(places.max() + 1)
    np.maximum.at(most, places, np.abs(values))
    apart = np.abs(np.bincount(places, values)) > TOLERANCE * size * most
    return not apart[np.bincount(places) == size].any()
