"""A trainer of TRL that draws prompts by a law and weighs their advantages by ρ/q (prompt_sampling).

::

    from trl import RLOOConfig
    from ustat_pg.llm import PromptSampler, PromptTrainer

    trainer = PromptTrainer(
        sampler=PromptSampler.by_rates(successes, 8),
        model=model, reward_funcs=verifier, train_dataset=prompts,
        args=RLOOConfig("out", beta=0.0, num_generations=8),
    )

A reward function cannot carry a weight of prompts, since baselines and deviations would change it. So the
weights multiply the advantages, after TRL has made them.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object

from ...validation import InputError
from ..prompt_sampler import PromptSampler
from .trainers import EstimatorTrainer, _replace_advantages, _settings

_COLUMN = "ustat_pg_prompt"
"""The column of the data set with the index of a prompt; reward functions see it as a keyword."""


class PromptTrainer(EstimatorTrainer):
    """TRL's RLOOTrainer with prompts drawn by a :class:`~ustat_pg.llm.PromptSampler`.

    The sampler's ``prompts``, ``repeat`` and ``reuse`` become those of the config. A sampler by rates learns
    from the rewards of each generation, 0 and 1; later draws use the new law, and a draw keeps its weight.
    A checkpoint does not contain the sampler: save its state too, load it before ``train`` resumes, and set
    ``ignore_data_skip=True``, or draws are skipped twice.

    Arguments:
        sampler: the law of prompts, one for each row of ``train_dataset``.
        arguments, keywords: TRL's own, for ``RLOOTrainer``, and those of :class:`EstimatorTrainer`; the
            estimator is grpo by default.

    Raises:
        InputError: the sampler has another number of prompts, or settings belong to another trainer.
    """

    def __init__(self, *arguments: Any, sampler: PromptSampler, **keywords: Any) -> None:
        args = _settings(arguments, keywords)
        if getattr(args, "loss_type", None) is not None:
            raise InputError("weights of prompts need a mean over sequences: take a trl.RLOOConfig")
        rows = keywords.get("train_dataset")
        if rows is None or not hasattr(rows, "add_column") or len(rows) != len(sampler.law):
            raise InputError(
                f"train_dataset must be a data set of {len(sampler.law)} rows, one for each prompt of the law"
            )
        keywords["train_dataset"] = rows.add_column(_COLUMN, [*range(len(rows))])
        super().__init__(*arguments, **{"estimator": "grpo"} | keywords)
        self.ustat_pg_sampler = sampler
        settings: Any = self
        sampler.repeat = settings.num_generations
        sampler.prompts = settings.args.generation_batch_size // sampler.repeat
        sampler.reuse = settings.num_iterations * settings.args.steps_per_generation

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """TRL's own; a resumed training must not skip draws, because their weights would go to others."""
        trainer: Any = self
        if resume_from_checkpoint and not trainer.args.ignore_data_skip:
            raise InputError(
                "a training with a PromptSampler resumes with ignore_data_skip=True, after "
                "sampler.load_state_dict"
            )
        return super().train(resume_from_checkpoint, *arguments, **keywords)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return self.ustat_pg_sampler

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        trainer: Any = self
        if not trainer.model.training:
            return output
        sampler, size = self.ustat_pg_sampler, trainer.num_generations
        indices = gather_object([row[_COLUMN] for row in inputs])[::size]
        weights = torch.tensor([sampler.take(index) for index in indices])
        gathered = trainer.accelerator.gather(output["advantages"])
        each = weights.repeat_interleave(size).to(gathered)
        output["advantages"] = _replace_advantages(self, gathered * each)
        if sampler.updates:
            rewards = self._all_rewards * trainer.reward_weights.to(self._all_rewards.device)
            groups = rewards.nansum(dim=1).double().view(-1, size)
            sampler.update(indices, groups.cpu().numpy())
        trainer._metrics["train"]["prompts/weight_max"].append(float(weights.max()))
        return output
