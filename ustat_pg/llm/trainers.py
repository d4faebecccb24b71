"""TRL's trainers for a :class:`~ustat_pg.llm.training.Training`, with the advantages that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ..estimators import norm_weighted
from ..validation import InputError
from .budgets import refuse_group_size
from .models import LanguageModel
from .prompts import Task, VerifierError
from .training import TRAINERS, TrainerKind, Training, table_advantages

__all__ = ["build_trainer", "reward_function", "sharded", "training_set"]

_LOGITS_BYTES = 2**28
"""How much of float32 logits the token proxy holds at a time."""


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


def reward_function(task: Task) -> Callable[..., list[float | None]]:
    """The task's verifier as a reward function of TRL, over :func:`training_set`.

    A verifier that raises gives no reward to the completions of that prompt (TRL leaves them out of
    the step); the messages are collected in the function's attribute ``failures``, and their number
    is logged as ``verifier_failures``.
    """
    prompts = {prompt.id: prompt for prompt in task.prompts}
    failures: list[str] = []

    def verifier(
        *,
        completions: Sequence[Any],
        prompt_id: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [
            completion if isinstance(completion, str) else completion[-1]["content"]
            for completion in completions
        ]
        found: list[float | None] = [None] * len(texts)
        failed = 0
        for one in dict.fromkeys(prompt_id):
            where = [index for index, other in enumerate(prompt_id) if other == one]
            ids = None if completion_ids is None else [completion_ids[index] for index in where]
            try:
                rewards = task.rewards(prompts[one], [texts[index] for index in where], ids)
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
    made = _trainer_class(training.kind)(
        model=language_model.model,
        reward_funcs=reward_function(task) if rewards is None else rewards,
        args=arguments,
        train_dataset=training_set(task, training),
        processing_class=language_model.tokenizer,
        callbacks=list(callbacks),
        optimizers=optimizers,
    )
    made.ustat_pg_baseline = training.kind.baseline
    made.ustat_pg_scores = dict(scores or {})
    if training.trainer not in TRAINERS:
        made.ustat_pg_table = table_advantages(training.trainer, training.group_size)
    return made


def sharded(trainer: Any) -> bool:
    """Whether the weights of a trainer's model are spread over processes."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


def _trainer_class(kind: TrainerKind) -> Any:
    """TRL's class, or our subclass of it where the advantages are others."""
    from trl import GRPOTrainer, RLOOTrainer

    if kind.name == "grpo-corrected":
        return _corrected()
    if kind.algorithm == "grpo":
        return GRPOTrainer
    return RLOOTrainer if kind.baseline == "grpo" else _with_baseline()


def _replace_advantages(trainer: Any, advantages: Any) -> Any:
    """Of the advantages of all processes the own part; TRL's log gets those that count."""
    logged = trainer._logs["advantages"]
    for _ in range(min(len(logged), len(advantages))):
        logged.pop()
    logged.extend(advantages.tolist())
    own = len(advantages) // trainer.accelerator.num_processes
    start = trainer.accelerator.process_index * own
    return advantages[start : start + own]


def _group_size(trainer: Any) -> int:
    """G of what is being drawn: TRL's evaluation may have another."""
    return trainer.num_generations if trainer.model.training else trainer.num_generations_eval


@cache
def _corrected() -> Any:
    """GRPOTrainer with advantages times G/(G-1): leave-one-out means from full ones."""
    from trl import GRPOTrainer

    class CorrectedGRPOTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            size = _group_size(self)
            output["advantages"] = output["advantages"] * (size / (size - 1))
            return output

    return CorrectedGRPOTrainer


@cache
def _with_baseline() -> Any:
    """RLOOTrainer with the advantages of vanilla, of a weighted leave-one-out mean or of a table."""
    import torch
    from trl import RLOOTrainer

    class BaselineTrainer(RLOOTrainer):
        ustat_pg_baseline: str
        ustat_pg_scores: dict[str, Any]
        ustat_pg_table: Callable[[Any], Any] | None = None

        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self._all_rewards = super()._calculate_rewards(*args, **kwargs)
            return self._all_rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            policy: Any = self.model
            # TRL's evaluation may have groups that a table is not of, and must not be learned from.
            if self.ustat_pg_table is not None and not policy.training:
                return output
            size = _group_size(self)
            known = ~torch.isnan(self._all_rewards).all(dim=1)
            each = self._all_rewards * self.reward_weights.to(self._all_rewards.device)
            rewards = each.nansum(dim=1).double()
            if self.ustat_pg_table is not None:
                known = known.view(-1, size).all(dim=1).repeat_interleave(size)
                advantages = torch.zeros_like(rewards)
                if known.any():
                    found = self.ustat_pg_table(rewards[known].view(-1, size))
                    advantages[known] = found.flatten()
            elif self.ustat_pg_baseline == "vanilla":
                advantages = rewards
            else:
                weights = _WEIGHTS[self.ustat_pg_baseline](self, output).to(rewards)
                weights = self.accelerator.gather(weights) * known
                advantages = norm_weighted(
                    rewards.view(-1, size), squared_norms=weights.view(-1, size)
                ).flatten()
            # TRL's rule for completions without any reward: they do not move the policy.
            advantages = torch.where(known, advantages, torch.zeros_like(advantages))
            own = _replace_advantages(self, advantages.to(output["advantages"].dtype))
            output["advantages"] = own
            return output

    return BaselineTrainer


def _lengths(trainer: Any, output: Any) -> Any:
    return output["completion_mask"].sum(dim=1).double()


def _token_proxies(trainer: Any, output: Any) -> Any:
    """Σₜ ‖e_{yₜ} - π(.|y_{<t})‖² = Σₜ (1 - 2πₜ + Σᵥ πᵥ²) of each completion."""
    import torch

    from .scores.tokens import of_tokens

    model = trainer.accelerator.unwrap_model(trainer.model)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    longest = output["completion_ids"].shape[1]
    vocabulary = model.config.get_text_config().vocab_size
    rows = max(1, _LOGITS_BYTES // (4 * (longest + 1) * vocabulary))
    found = []
    with torch.no_grad(), trainer.accelerator.autocast():
        for start in range(0, len(ids), rows):
            part = slice(start, start + rows)
            logits = model(
                input_ids=ids[part],
                attention_mask=mask[part],
                logits_to_keep=longest + 1,
                use_cache=False,
            ).logits[:, :-1]
            log = torch.log_softmax(logits.float(), dim=-1)
            counted = output["completion_mask"][part].bool()
            found.append(of_tokens(log, output["completion_ids"][part], counted)[0][0])
    return torch.cat(found).clamp(min=0)


def _squared_norms(trainer: Any, output: Any) -> Any:
    """‖sᵢ‖² of each completion, by :class:`ustat_pg.llm.scores.Scores`."""
    import torch

    from .scores import Scores

    if sharded(trainer):
        raise InputError(
            "norm-weighted needs the whole model on every process: without FSDP and ZeRO stage 3, "
            "or take length-weighted"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    prompts, completions = (
        [
            tuple(row[kept.bool()].tolist())
            for row, kept in zip(output[f"{what}_ids"], output[f"{what}_mask"], strict=True)
        ]
        for what in ("prompt", "completion")
    )
    training = model.training
    model.eval()
    found: list[float] = []
    try:
        with torch.enable_grad():
            scores = Scores(model, **trainer.ustat_pg_scores)
            pairs = zip(prompts, completions, strict=True)
            for prompt, group in groupby(pairs, key=lambda pair: pair[0]):
                found.extend(scores.norms(prompt, [completion for _, completion in group]))
    finally:
        model.train(training)
    return torch.tensor(found, dtype=torch.float64, device=output["completion_ids"].device)


_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "norm-weighted": _squared_norms,
    "length-weighted": _lengths,
    "token-weighted": _token_proxies,
}
