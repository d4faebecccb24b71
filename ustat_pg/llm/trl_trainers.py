"""Trainers of TRL whose advantages are this library's: drop-in classes for a script of one's own.

A script that has ``RLOOTrainer`` takes another baseline by one line::

    from trl import RLOOConfig
    from ustat_pg.llm import BaselineTrainer

    trainer = BaselineTrainer(
        baseline="norm-weighted",
        model=model, reward_funcs=verifier, train_dataset=prompts,
        args=RLOOConfig("out", beta=0.0, num_generations=8),
    )

Its step is then (1/BG) Σ sᵢ Aᵢ with the advantages of that baseline, at TRL's other settings. They need
the version of TRL that is installed with ``ustat_pg[llm]``, whose insides they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

import numpy as np
import torch
from trl import GRPOTrainer, RLOOConfig, RLOOTrainer

from ..estimators import RunningTable, advantages, norm_weighted
from ..validation import InputError, integer
from .models import sharded
from .scores import Scores
from .scores.tokens import of_tokens

__all__ = ["BaselineTrainer", "CorrectedGRPOTrainer"]

TRL = "1.16"
"""The version whose trainers are derived from here, private members included."""

# The site is built without TRL, and its stand-in has no version.
with suppress(PackageNotFoundError):
    if (_installed := version("trl")).split(".")[:2] != TRL.split("."):
        raise InputError(
            f"TRL is {_installed}, and these trainers change what is inside that of {TRL}: "
            f"pip install 'trl~={TRL}.0'"
        )

_LOGITS_BYTES = 2**28
"""Bytes of float32 logits that the token proxy holds at a time."""
_PLAIN = {"beta": 0.0, "normalize_advantages": False, "reward_clip_range": None}
"""Settings of TRL that change the advantages, and the values that do not."""


def _table_advantages(name: str, group_size: int) -> Callable[[Any], Any]:
    """From rewards (B, G) to advantages, by a table's name."""
    if name == "running-table":
        return RunningTable(group_size).advantages
    if name == "best":
        raise InputError(
            "best is the table of known prompts: take running-table, which learns it on the way"
        )
    # Refused now, and not at the first step.
    advantages(name, np.zeros(group_size))
    return partial(advantages, name)


def require_plain(trainer: Any, baseline: str) -> None:
    """Refuse settings of TRL that would change the advantages."""
    for name, plain in _PLAIN.items():
        if (value := getattr(trainer, name)) != plain:
            raise InputError(
                f"{name} is {value!r}: the advantages of {baseline} are those of the rewards "
                f"alone; take {name}={plain!r}"
            )


def _replace_advantages(trainer: Any, gathered: Any) -> Any:
    """Return this process's slice of the gathered advantages, and log them in place of TRL's."""
    logged = trainer._logs["advantages"]
    for _ in range(min(len(logged), len(gathered))):
        logged.pop()
    logged.extend(gathered.tolist())
    return gathered.chunk(trainer.accelerator.num_processes)[trainer.accelerator.process_index]


class CorrectedGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with advantages times G/(G-1): leave-one-out means from full ones.

    With ``scale_rewards="none"``, ``beta=0.0`` and a loss that sums tokens its step is that of
    :func:`ustat_pg.estimators.grpo`.
    """

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        trainer: Any = self
        # TRL's evaluation may have groups of one, and nobody takes its advantages.
        if trainer.model.training:
            size = trainer.num_generations
            output["advantages"] = output["advantages"] * (size / (size - 1))
        return output


class BaselineTrainer(RLOOTrainer):
    """TRL's RLOOTrainer with another baseline.

    ===================== ============================================== ======================
    baseline              advantage                                      what it costs
    ===================== ============================================== ======================
    grpo                  TRL's own: reward less the others' mean        nothing
    vanilla               the reward                                     nothing
    norm-weighted         reward less the others' mean by ‖sⱼ‖²          one pass of scores
    length-weighted       the same, with lengths for ‖sⱼ‖²               nothing
    token-weighted        the same, with verl's token proxy              one forward pass
    bayes:1,1 and others  the library's tables by successes              nothing
    running-table         the table of least error, learned on the way   nothing
    ===================== ============================================== ======================

    A pass of scores makes a step take about twice as long (1.8 and 1.9 times the processor time on the
    embedded models base and short, 64 completions a step).

    Arguments:
        baseline: one of these; tables take rewards 0 and 1.
        scores: arguments of :class:`ustat_pg.llm.scores.Scores`, for ``norm-weighted``.
        arguments, keywords: TRL's own, for ``RLOOTrainer``.

    Raises:
        InputError: an unknown baseline, settings of another trainer, or settings that this baseline would
            ignore: a KL penalty (``beta``), ``normalize_advantages`` or ``reward_clip_range``.
    """

    def __init__(
        self,
        *arguments: Any,
        baseline: str = "norm-weighted",
        scores: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        args = keywords.get("args", arguments[2] if len(arguments) > 2 else None)
        if args is not None and not isinstance(args, RLOOConfig):
            raise InputError(
                f"args is a {type(args).__name__}: this is TRL's RLOOTrainer, whose settings are a "
                "trl.RLOOConfig"
            )
        super().__init__(*arguments, **keywords)
        self.ustat_pg_baseline = baseline
        self.ustat_pg_scores = dict(scores or {})
        self.ustat_pg_table: Callable[[Any], Any] | None = None
        group = integer("num_generations", self.num_generations, 2)
        if baseline not in ("grpo", "vanilla", *_WEIGHTS):
            self.ustat_pg_table = _table_advantages(baseline, group)
        if baseline != "grpo":
            require_plain(self, baseline)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self._all_rewards = super()._calculate_rewards(*args, **kwargs)
        return self._all_rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        trainer: Any = self
        # TRL's evaluation may have groups of another size, and nobody takes its advantages.
        if self.ustat_pg_baseline == "grpo" or not trainer.model.training:
            return output
        size = trainer.num_generations
        rewarded = ~torch.isnan(self._all_rewards).all(dim=1)
        weighted = self._all_rewards * self.reward_weights.to(self._all_rewards.device)
        rewards = weighted.nansum(dim=1).double()
        if self.ustat_pg_table is not None:
            rewarded = rewarded.view(-1, size).all(dim=1).repeat_interleave(size)
            new = torch.zeros_like(rewards)
            if rewarded.any():
                new[rewarded] = self.ustat_pg_table(rewards[rewarded].view(-1, size)).flatten()
        elif self.ustat_pg_baseline == "vanilla":
            new = rewards
        else:
            weights = _WEIGHTS[self.ustat_pg_baseline](self, output).to(rewards)
            weights = self.accelerator.gather(weights) * rewarded
            new = norm_weighted(
                rewards.view(-1, size), squared_norms=weights.view(-1, size)
            ).flatten()
        # TRL's rule for completions without any reward: they do not move the policy.
        new = torch.where(rewarded, new, torch.zeros_like(new))
        output["advantages"] = _replace_advantages(self, new.to(output["advantages"].dtype))
        return output


def _lengths(trainer: Any, output: Any) -> Any:
    return output["completion_mask"].sum(dim=1).double()


def _token_proxies(trainer: Any, output: Any) -> Any:
    """Σₜ ‖e_{yₜ} - π(.|y_{<t})‖² = Σₜ (1 - 2πₜ + Σᵥ πᵥ²) of each completion."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    longest = output["completion_ids"].shape[1]
    vocabulary = model.config.get_text_config().vocab_size
    rows = max(1, _LOGITS_BYTES // (4 * (longest + 1) * vocabulary))
    proxies = []
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
            proxies.append(of_tokens(log, output["completion_ids"][part], counted)[0][0])
    return torch.cat(proxies).clamp(min=0)


def _squared_norms(trainer: Any, output: Any) -> Any:
    """‖sᵢ‖² of each completion, by :class:`ustat_pg.llm.scores.Scores`."""
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
    norms: list[float] = []
    try:
        with torch.enable_grad():
            scores = Scores(model, **trainer.ustat_pg_scores)
            pairs = zip(prompts, completions, strict=True)
            for prompt, group in groupby(pairs, key=lambda pair: pair[0]):
                norms.extend(scores.norms(prompt, [completion for _, completion in group]))
    finally:
        model.train(training)
    return torch.tensor(norms, dtype=torch.float64, device=output["completion_ids"].device)


_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "norm-weighted": _squared_norms,
    "length-weighted": _lengths,
    "token-weighted": _token_proxies,
}
