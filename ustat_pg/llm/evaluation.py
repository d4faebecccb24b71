"""How right a model's answers to held-out prompts are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem

from ..validation import InputError, integer
from .models import LanguageModel
from .prompts import Task, VerifierError

__all__ = ["Evaluation", "accuracy", "answers", "evaluation_of", "greedy_rewards"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Answers to held-out prompts.

    Attributes:
        accuracy: the mean reward, which for a verifier of 0 and 1 is the share of right answers.
        se: its standard error over prompts.
        prompts: how many were counted.
        failures: prompts at which the verifier raised; they are not counted.
    """

    accuracy: float
    se: float
    prompts: int
    failures: tuple[str, ...] = ()


def accuracy(
    language_model: LanguageModel,
    task: Task,
    *,
    samples: int = 1,
    greedy: bool = False,
    seed: int = 0,
    batch: int = 64,
) -> Evaluation:
    """The mean reward of a model's answers to a task's prompts.

    Arguments:
        language_model: its mode, training or not, is kept.
        task: the prompts.
        samples: answers to each, at temperature 1 from the whole distribution.
        greedy: the most probable token each time, one answer to each prompt, in place of samples.
        seed: of the samples; a draw is a function of it, the prompt, the sample and the position.
        batch: answers drawn at a time.

    Raises:
        InputError: a prompt that with its answer is longer than the context.
    """
    rewards, failures = answers(
        language_model, task, range(len(task.prompts)), samples, greedy, seed, batch
    )
    return evaluation_of(rewards, failures)


def evaluation_of(rewards: Mapping[int, float], failures: Sequence[str]) -> Evaluation:
    values = np.array([rewards[index] for index in sorted(rewards)])
    if not values.size:
        return Evaluation(math.nan, math.nan, 0, tuple(failures))
    se = float(sem(values)) if values.size > 1 else math.nan
    return Evaluation(float(values.mean()), se, values.size, tuple(failures))


def greedy_rewards(
    language_model: LanguageModel, task: Task, names: Sequence[str], *, batch: int = 64
) -> NDArray[np.float64]:
    """The rewards of one most probable completion of each prompt, (P,): the baseline of ReMax.

    They are constants of their prompts, so :func:`ustat_pg.llm.estimates.curves` has ReMax's error.

    Arguments:
        language_model: the policy.
        task: the prompts and the verifier.
        names: ids of prompts, in a pool's order.
        batch: completions at a time.

    Raises:
        InputError: a prompt that the task has not, or at whose completion the verifier raised.
    """
    places = {prompt.id: place for place, prompt in enumerate(task.prompts)}
    if unknown := [name for name in names if name not in places]:
        raise InputError(
            f"the task has no prompt {unknown[0]!r}: ReMax takes a greedy completion of each"
        )
    which = [places[name] for name in names]
    rewards, failures = answers(language_model, task, which, 1, True, 0, batch)
    if failures:
        raise InputError(f"a greedy completion has no reward, which ReMax takes: {failures[0]}")
    return np.array([rewards[place] for place in which])


def answers(
    language_model: LanguageModel,
    task: Task,
    which: Sequence[int],
    samples: int,
    greedy: bool,
    seed: int,
    batch: int,
) -> tuple[dict[int, float], list[str]]:
    """Mean rewards of the prompts whose places are given, and the verifier's failures."""
    import torch

    from .generation import most_probable, transformers_draw
    from .models import check_lengths, tokenise

    # A trainer may have taken the model to another device than it was loaded on.
    device = next(language_model.model.parameters()).device
    language_model = replace(language_model, device=str(device))
    longest = task.max_new_tokens
    prompts = []
    for index in which:
        prompt = task.prompts[index]
        ids = tokenise(language_model, prompt)
        check_lengths(language_model, prompt.id, len(ids), longest)
        prompts.append((prompt.id, ids))
    rewards, failures = {}, []
    drawn: Iterator[tuple[tuple[int, ...], ...]]
    with torch.no_grad():
        if greedy:
            parts = (prompts[start : start + batch] for start in range(0, len(prompts), batch))
            drawn = (
                (one,)
                for part in parts
                for one in most_probable(language_model, [ids for _, ids in part], longest)
            )
        else:
            count = integer("samples", samples)
            draws = transformers_draw(
                language_model, prompts, count, longest, seed, integer("batch", batch), {}
            )
            drawn = (each.tokens for each in draws)
        for index, completions in zip(which, drawn, strict=True):
            texts = language_model.tokenizer.batch_decode(completions, skip_special_tokens=True)
            try:
                found = task.rewards(task.prompts[index], texts, completions)
            except VerifierError as error:
                failures.append(str(error))
            else:
                rewards[index] = float(found.mean())
    return rewards, failures
