"""A trainer of TRL that draws in two stages: a pilot for each prompt, and more outputs if it is mixed.

::

    from trl import RLOOConfig
    from ustat_pg.llm import TwoStageTrainer

    trainer = TwoStageTrainer(
        more=12, model=model, reward_funcs=verifier, train_dataset=prompts,
        args=RLOOConfig("out", beta=0.0, num_generations=4),
    )

Pilots have ``num_generations`` outputs. TRL's loss is a mean over sequences, so each advantage is that of
:func:`ustat_pg.estimators.two_stage` times R/(B n): R sequences in the loss, B prompts, n outputs of the
prompt. The step is then (1/B) Σₓ (1/nₓ) Σᵢ sᵢ Aᵢ, whose mean is the gradient (adaptive_groups).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from trl import RLOOConfig

from ...estimators import grpo, two_stage
from ...validation import InputError, integer
from .trainers import _PLAIN, EstimatorTrainer, _refuse_settings, _replace_advantages, _settings

_NEWEST = 0.2
"""The weight of the latest step in the running share of mixed pilots."""


class TwoStageTrainer(EstimatorTrainer):
    """TRL's RLOOTrainer with two-stage groups and the same mean number of completions as fixed groups.

    The mean number of completions per step equals TRL's generation batch. A step uses the first B prompts of
    that batch; B depends on completions and mixed pilots of earlier steps, so each step is unbiased. One step
    may draw more than the batch.

    TRL's log also has ``completions/drawn`` and ``completions/prompts`` of a step. ``reward`` and lengths are
    those of pilots, in which all prompts count equally; ``frac_reward_zero_std`` is the share of pilots that
    are not mixed. A group with a missing reward does not change the policy.

    Arguments:
        more: number of outputs of the second stage.
        corrected: False for grpo of all drawn outputs, which is biased, for comparison.
        arguments, keywords: TRL's own, for ``RLOOTrainer``.

    Raises:
        InputError: settings belong to another trainer (losses of ``GRPOConfig`` weight tokens of unequal
            outputs by another rule) or change advantages, the estimator is another one, or prompts have
            images.
    """

    def __init__(self, *arguments: Any, more: int, corrected: bool = True, **keywords: Any) -> None:
        args = _settings(arguments, keywords)
        if (loss := getattr(args, "loss_type", None)) is not None:
            raise InputError(
                f"loss_type is {loss!r}: unequal groups need a mean over sequences, each the sum of its "
                "tokens, which is the loss of a trl.RLOOConfig"
            )
        if "estimator" in keywords:
            raise InputError(
                f"estimator is {keywords['estimator']!r}: two stages have leave-one-out "
                f"advantages; for others use an EstimatorTrainer"
            )
        _refuse_settings(args, "two stages", _PLAIN[RLOOConfig])
        self.ustat_pg_more = integer("more", more, 1)
        super().__init__(*arguments, estimator="grpo", **keywords)
        self.ustat_pg_corrected = corrected
        self._owed, self._mixed = 0.0, 1.0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        trainer: Any = self
        if not trainer.model.training:
            return super()._generate_and_score_completions(inputs)
        if {"image", "images"} & set(inputs[0]):
            raise InputError("prompts have images, but two stages need text only")
        pilot, more, size = (
            trainer.num_generations,
            self.ustat_pg_more,
            self.accelerator.num_processes,
        )
        prompts = gather_object(inputs)[::pilot]
        self._owed += trainer.args.generation_batch_size
        expected = pilot + more * self._mixed
        prompts = prompts[: max(1, round(self._owed / expected))]
        output, first = self._stage(prompts, pilot)
        mixed = (first != first[:, :1]).any(1) & ~first.isnan().any(1)
        metrics = trainer._metrics["train"]
        stages = [(output, torch.zeros_like(first))]
        if mixed.any():
            chosen = [prompts[i] for i in mixed.nonzero().flatten().tolist()]
            trainer._metrics["train"] = defaultdict(list)
            output, second = self._stage(chosen, more)
            metrics["num_tokens"] = trainer._metrics["train"]["num_tokens"]
            trainer._metrics["train"] = metrics
            rewards = torch.cat([first[mixed], second], dim=1)
            weights, scored = torch.zeros_like(rewards), ~rewards.isnan().any(1)
            if scored.any():
                known = rewards[scored]
                weights[scored] = (
                    two_stage(known, pilot=pilot) if self.ustat_pg_corrected else grpo(known)
                )
            stages[0][1][mixed] = weights[:, :pilot]
            stages.append((output, weights[:, pilot:]))
        joined, fillers = self._joined([output for output, _ in stages])
        sequences = size * len(joined["completion_ids"])
        padded = [self._padded(weights.flatten()) for _, weights in stages]
        scale = sequences / (len(prompts) * (pilot + more))
        _replace_advantages(self, torch.cat(padded) * scale)
        place = trainer.accelerator.process_index
        values = torch.cat([part.chunk(size)[place] for part in padded]) * scale
        joined["advantages"] = pad(values, (0, fillers)).to(joined["old_logps"])
        drawn = sum(map(len, padded))
        self._owed -= drawn
        self._mixed += _NEWEST * (float(mixed.double().mean()) - self._mixed)
        metrics["completions/drawn"].append(float(drawn))
        metrics["completions/prompts"].append(float(len(prompts)))
        metrics["frac_reward_zero_std"][-1] = 1 - float(mixed.double().mean())
        return joined

    def _padded(self, rows: Any) -> Any:
        """The rows of all processes, with zeros so that each process has equally many."""
        return pad(rows, (0, -len(rows) % self.accelerator.num_processes))

    def _stage(self, prompts: list[Any], outputs: int) -> tuple[Any, Any]:
        """Draw outputs of the prompts of all processes: TRL's batch of this one, and all rewards (B, n)."""
        trainer: Any = self
        size, place = self.accelerator.num_processes, trainer.accelerator.process_index
        rows = [prompt for prompt in prompts for _ in range(outputs)]
        filled = rows + rows[:1] * (-len(rows) % size)
        share, pilot = len(filled) // size, trainer.num_generations
        # TRL's own advantages are not used, and groups of one fit any number of rows.
        trainer.num_generations = 1
        try:
            output = super()._generate_and_score_completions(filled[place * share :][:share])
        finally:
            trainer.num_generations = pilot
        rewards = self._all_rewards * self.reward_weights.to(self._all_rewards.device)
        missing = self._all_rewards.isnan().all(dim=1)
        total = rewards.nansum(dim=1).double().masked_fill(missing, torch.nan)
        return output, total[: len(rows)].view(-1, outputs)

    def _joined(self, outputs: list[Any]) -> tuple[dict[str, Any], int]:
        """The sequences of both stages with equal padding, and fillers so that TRL's micro-batches are
        equal.
        """
        trainer: Any = self
        fillers = (
            -sum(len(part["old_logps"]) for part in outputs) % trainer.args.steps_per_generation
        )
        joined = {"old_logps": torch.cat([part["old_logps"] for part in outputs])}
        for kind, side in (("prompt", "left"), ("completion", "right")):
            for name, value in (
                (f"{kind}_ids", trainer._tokenizer.pad_token_id),
                (f"{kind}_mask", 0),
            ):
                rows = [row for part in outputs for row in part[name]]
                joined[name] = pad_sequence(rows, True, value, side)
        if fillers:
            joined = {
                k: torch.cat([v, v[:1].repeat(fillers, *[1] * (v.ndim - 1))])
                for k, v in joined.items()
            }
        return joined, fillers
