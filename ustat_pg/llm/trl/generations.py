"""Conversion of TRL's generations to arguments of :class:`ustat_pg.noise.Alarms`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...validation import Array
from .batches import array, option


def rows(trainer: Any, output: dict[str, Any], prompts: NDArray[np.int64]) -> dict[str, Any] | None:
    """The arguments of ``Alarms.generation``; None if no group is whole on this process.

    Arguments:
        trainer: TRL's trainer.
        output: result of its ``_generate_and_score_completions``, before the shuffle.
        prompts: a number for the prompt of each completion.
    """
    size, rewards, count = trainer.num_generations, _rewards(trainer), len(prompts)
    first = trainer.accelerator.process_index * count
    numbers = groups_of(trainer, prompts)
    z: Array | None = None
    if len(rewards) == count * trainer.accelerator.num_processes and numbers is not None:
        z, groups = rewards[first : first + count], numbers
        whole = np.bincount(groups - groups[0])[groups - groups[0]] == size
    elif trainer.accelerator.num_processes == 1:
        # Rows were removed or moved, so TRL's order of the rewards is not theirs.
        groups, whole = prompts, np.ones(count, dtype=bool)
    else:
        return None
    if not whole.any():
        return None
    kept = array(output["completion_mask"].sum(dim=1)) > 0
    advantages = output["advantages"]
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    # A mask may leave out outputs, but their tokens are still there: an output ends where only padding
    # follows.
    tokens = array(output["completion_ids"]) != tokenizer.pad_token_id
    lengths = (tokens * np.arange(1, tokens.shape[1] + 1)).max(axis=1)
    columns = {
        "prompts": groups,
        "rewards": z,
        "advantages": array(advantages) if advantages.ndim == 1 else None,
        "lengths": lengths,
        "kept": kept if z is None else kept & np.isfinite(z),
    }
    chosen = {name: row if row is None else row[whole] for name, row in columns.items()}
    return chosen | {"ranked": _ranked(trainer)}


def groups_of(trainer: Any, prompts: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The number of each completion's group in TRL's order, equal on all processes; else None."""
    count = len(prompts)
    places = trainer.accelerator.process_index * count + np.arange(count)
    groups: NDArray[np.int64] = places // trainer.num_generations
    alike = (prompts == prompts[np.searchsorted(groups, groups)]).all()
    return groups if alike else None


def _rewards(trainer: Any) -> Array:
    """The latest generation's rewards on all processes (NaN if there is none), if TRL keeps them."""
    logs = getattr(trainer, "_logs", {})
    if not logs.get("rewards"):
        return np.zeros(0)
    rewards = np.array([list(column) for column in logs["rewards"].values()], dtype=float)
    total = np.nansum(trainer.reward_weights.cpu().numpy()[:, None] * rewards, axis=0)
    total[np.isnan(rewards).all(axis=0)] = np.nan
    return np.asarray(total)


def _ranked(trainer: Any) -> bool:
    """Whether advantages rise with rewards: not with a penalty in them, or with separate normalisation."""
    from trl import RLOOTrainer

    way = option(trainer, "multi_objective_aggregation", "sum_then_normalize")
    penalised = isinstance(trainer, RLOOTrainer) and option(trainer, "beta")
    return way == "sum_then_normalize" and not penalised
