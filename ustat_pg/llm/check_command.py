"""``ustat-pg llm mse --check``: gradients sampled anew beside a pool's errors."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..validation import InputError, integer
from .scored import ScoredPool

if TYPE_CHECKING:
    from .models import LanguageModel
    from .prompts import Task
    from .store import Rollouts

__all__ = ["refuse_check", "sampled_anew"]

_SAMPLED = ("vanilla", "grpo", "oracle", "norm-weighted")
"""Whose errors --check samples; the last needs groups no larger than the pool."""


def refuse_check(options: argparse.Namespace) -> None:
    """Refuse before anything is sampled what would be refused after it."""
    if options.check is None:
        return
    options.check_prompts = 20 if options.check_prompts is None else options.check_prompts
    options.replications = 16 if options.replications is None else options.replications
    if options.scored is not None:
        raise InputError("--check samples anew: it needs --model, not a scored pool alone")
    if options.parameters:
        raise InputError("--check differentiates all parameters: it does not go with --parameters")
    for size in options.check:
        integer("group size in --check", size, 2)
    integer("check-prompts", options.check_prompts)
    if integer("replications", options.replications, 4) % 2:
        raise InputError(
            f"replications are {options.replications}: they must be even, errors come from pairs"
        )


def sampled_anew(
    options: argparse.Namespace,
    pool: ScoredPool,
    made_of: tuple[LanguageModel, Task | None, list[Rollouts]],
    seed: int,
) -> Any:
    """Errors sampled anew beside the pool's, prompt by prompt, and what both cost."""
    import pandas as pd

    from .brute_force import brute_force
    from .estimates import curves
    from .generation import transformers_draw

    model, task, rollouts = made_of
    if task is None:
        raise InputError("--check samples anew: it needs the task, --prompts")
    few = rollouts[: options.check_prompts]

    def draw(prompt: int, count: int, seed: int) -> tuple[Any, Any]:
        one = few[prompt]
        ((drawn, _),) = transformers_draw(
            model, [(one.prompt.id, one.prompt_ids)], count, task.max_new_tokens, seed, 256
        )
        texts = model.tokenizer.batch_decode(drawn, skip_special_tokens=True)
        return drawn, task.rewards(one.prompt, texts, drawn)

    here = pool.select_prompts(range(len(few)))
    found = brute_force(
        model.model,
        [one.prompt_ids for one in few],
        draw,
        group_sizes=options.check,
        baselines=_SAMPLED,
        replications=options.replications,
        values=here.rewards.mean(axis=1),
        seed=seed + 1,
    ).frame()
    own = curves(here, options.check, _SAMPLED[:-1])
    inside = [size for size in options.check if size <= here.rollouts]
    if inside and here.gram is not None:
        own = pd.concat([own, curves(here, inside, _SAMPLED[-1:])], ignore_index=True)
    own = own[["baseline", "group_size", "mse"]]
    both = found.merge(
        own.rename(columns={"mse": "pool"}), on=["baseline", "group_size"], how="left"
    )
    both = both.rename(columns={"mse": "sampled", "se": "sampled_se"})
    return both[["baseline", "group_size", "pool", "sampled", "sampled_se", "rollouts", "seconds"]]
