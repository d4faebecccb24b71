"""TRL's trainers for a :class:`~ustat_pg.llm.training.Training`, with the advantages that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..validation import InputError
from .budgets import refuse_group_size
from .models import LanguageModel
from .prompts import Task, VerifierError
from .training import TrainerKind, Training

TRL = "1.16"
"""The version whose trainers are derived from here, private members included."""


def _refuse_other_trl(found: str) -> None:
    if found.split(".")[:2] != TRL.split("."):
        raise InputError(
            f"TRL is {found}, and these trainers change what is inside that of {TRL}: "
            f"pip install 'trl~={TRL}.0'"
        )


with suppress(PackageNotFoundError):  # told where it is imported
    _refuse_other_trl(version("trl"))

__all__ = ["build_trainer", "reward_function", "training_set"]


def training_set(task: Task, training: Training | None = None) -> Any:
    """The task's prompts as a ``datasets.Dataset`` with the columns ``prompt`` and ``prompt_id``.

    With a run given, all its steps' prompts in order, B distinct ones for each step: a permutation
    of the prompts for each epoch, a function of the seed alone, of which an incomplete last step is
    left out. TRL's own shuffling begins anew where a run is continued from a checkpoint.
    """
    from datasets import Dataset

    made = Dataset.from_list(
        [{"prompt": prompt.text, "prompt_id": prompt.id} for prompt in task.prompts]
    )
    if training is None:
        return made
    count, size = len(task.prompts), training.prompts
    whole = count // size
    order = np.concatenate(
        [
            np.random.default_rng([training.seed, epoch]).permutation(count)[: whole * size]
            for epoch in range(-(-training.steps // whole))
        ]
    )
    return made.select(order[: training.steps * size])


def reward_function(task: Task, held: Task | None = None) -> Callable[..., list[float | None]]:
    """The task's verifier as a reward function of TRL, over :func:`training_set`.

    Rows with a true column ``held_out`` are prompts of ``held``, and rewarded by its verifier.

    A verifier that raises gives no reward to the completions of that prompt (TRL leaves them out of
    the step); the messages are collected in the function's attribute ``failures``, and their number
    is logged as ``verifier_failures``.
    """
    tasks = {False: task} | ({} if held is None else {True: held})
    prompts = {which: {each.id: each for each in part.prompts} for which, part in tasks.items()}
    failures: list[str] = []

    def verifier(
        *,
        completions: Sequence[Any],
        prompt_id: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
        held_out: Sequence[bool] = (False,),
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [
            completion if isinstance(completion, str) else completion[-1]["content"]
            for completion in completions
        ]
        found: list[float | None] = [None] * len(texts)
        failed = 0
        part = held_out[0]
        for one in dict.fromkeys(prompt_id):
            where = [index for index, other in enumerate(prompt_id) if other == one]
            ids = None if completion_ids is None else [completion_ids[index] for index in where]
            try:
                rewards = tasks[part].rewards(
                    prompts[part][one], [texts[index] for index in where], ids
                )
            except VerifierError as error:
                failures.append(str(error))
                failed += 1
                continue
            for index, reward in zip(where, rewards, strict=True):
                found[index] = float(reward)
        if log_metric is not None:
            log_metric("verifier_failures", failed)
        return found

    verifier.failures = failures  # type: ignore[attr-defined]
    return verifier


def build_trainer(
    training: Training,
    language_model: LanguageModel,
    task: Task,
    out: Path | str,
    *,
    callbacks: Sequence[Any] = (),
    rewards: Callable[..., Any] | None = None,
    held: Task | None = None,
    greedy: bool = False,
    optimizers: tuple[Any, Any] = (None, None),
    scores: Mapping[str, Any] | None = None,
) -> Any:
    """TRL's trainer for a run; the model is trained in place.

    Arguments:
        training: the run as data.
        language_model: what is trained.
        task: the prompts, and the verifier.
        out: TRL's output folder, for checkpoints.
        callbacks: of transformers' kind.
        rewards: in place of ``reward_function(task)``, such as a watched one.
        held: the prompts that TRL's ``evaluate`` takes, if any; TRL's own arguments say how.
        greedy: whether it takes the most probable tokens, in place of sampled ones.
        optimizers: an optimizer and a schedule of your own, in place of the named one.
        scores: arguments of :class:`ustat_pg.llm.scores.Scores`, for ``norm-weighted``.

    Raises:
        InputError: fewer prompts than a step needs, another number of processes than the run is
            for, or TRL refuses the configuration.
    """
    refuse_group_size(training.group_size, training.budget, len(task.prompts))
    arguments = training.configuration(out)
    if arguments.world_size != training.processes:
        raise InputError(
            f"the run is for {training.processes} process(es) and this is one of "
            f"{arguments.world_size}: a step would not be {training.budget} completions"
        )
    evaluated = None
    if held is not None:
        tested = training_set(held)
        evaluated = tested.add_column("held_out", [True] * len(tested))
    trainer = _trainer_class(training.kind, scores)(
        model=language_model.model,
        reward_funcs=reward_function(task, held) if rewards is None else rewards,
        args=arguments,
        train_dataset=training_set(task, training),
        eval_dataset=evaluated,
        processing_class=language_model.tokenizer,
        callbacks=list(callbacks),
        optimizers=optimizers,
    )
    trainer.greedy = greedy
    return trainer


def _trainer_class(kind: TrainerKind, scores: Mapping[str, Any] | None) -> Any:
    """TRL's class, or our subclass of it where the advantages are others; its evaluations are ours."""
    from trl import GRPOTrainer, RLOOTrainer

    from .evaluation import HeldOut
    from .trl_trainers import BaselineTrainer, CorrectedGRPOTrainer

    made: Any = BaselineTrainer
    if kind.algorithm == "grpo":
        made = CorrectedGRPOTrainer if kind.name == "grpo-corrected" else GRPOTrainer
    elif kind.baseline == "grpo":
        made = RLOOTrainer
    own = type(made.__name__, (HeldOut, made), {})
    if made is not BaselineTrainer:
        return own
    return partial(own, baseline=kind.baseline, scores=scores)
