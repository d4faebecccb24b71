"""Trainers of TRL with advantages of this library, as drop-in classes for your own script.

A script with ``RLOOTrainer`` gets another estimator by one line::

    from trl import RLOOConfig
    from ustat_pg.llm import EstimatorTrainer

    trainer = EstimatorTrainer(
        estimator="norm-weighted",
        model=model, reward_funcs=verifier, train_dataset=prompts,
        args=RLOOConfig("out", beta=0.0, num_generations=8),
    )

Its step is then (1/BG) Σ sᵢ Aᵢ with these advantages and TRL's other settings. With a ``GRPOConfig`` of
``scale_rewards="none"`` it is TRL's GRPOTrainer, clipping and KL included, whose ``loss_type`` multiplies
that step by one factor: dapo, dr_grpo, luspo, cispo or vespo. They need the version of TRL that is installed
with ``ustat_pg[llm]``, because they change its internals.
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
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from ...catalogue import catalogue
from ...estimators import RunningTable, advantages, norm_weighted
from ...registry import parse
from ...validation import InputError, integer
from ..models.loading import sharded
from ..scores import Asked, Scores
from ..scores.tokens import of_tokens

TRL = "1.16"
"""The version of the base trainers, including their private members."""

# The site is built without TRL, and its replacement has no version.
with suppress(PackageNotFoundError):
    if (_installed := version("trl")).split(".")[:2] != TRL.split("."):
        raise InputError(
            f"TRL is {_installed}, and these trainers change what is inside that of {TRL}: "
            f"pip install 'trl~={TRL}.0'"
        )

_LOGITS_BYTES = 2**28
"""The bytes of float32 logits for the token proxy at a time."""
_PLAIN: dict[type[Any], dict[str, Any]] = {
    RLOOConfig: {"beta": 0.0, "normalize_advantages": False, "reward_clip_range": None},
    GRPOConfig: {"scale_rewards": "none", "multi_objective_aggregation": "sum_then_normalize"},
}
"""Settings of TRL that change the advantages, with the values that do not."""


def _table_advantages(name: str, group_size: int) -> Callable[[Any], Any]:
    """The function from rewards (B, G) to advantages for a table's name."""
    if name == "running-table":
        return RunningTable(group_size).advantages
    if needs := parse(name)[0].needs:
        raise InputError(
            f"{name} takes {', '.join(needs)} of known prompts, which a trainer has not: take running-table, "
            f"which learns a table on the way, or {', '.join(_WEIGHTS)}"
        )
    # This raises the error now, and not at the first step.
    advantages(name, np.zeros(group_size))
    return partial(advantages, name)


def _replace_advantages(trainer: Any, gathered: Any) -> Any:
    """Return this process's slice of the gathered advantages, and log them instead of TRL's."""
    logged = trainer._logs["advantages"]
    for _ in range(min(len(logged), len(gathered))):
        logged.pop()
    logged.extend(gathered.tolist())
    return gathered.chunk(trainer.accelerator.num_processes)[trainer.accelerator.process_index]


def _settings(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The config among a trainer's arguments (default: TRL's)."""
    return keywords.get("args", arguments[2] if len(arguments) > 2 else None) or RLOOConfig


def _refuse_settings(args: Any, estimator: str, plain: Mapping[str, Any]) -> None:
    """Raise an error before a model is loaded for settings that an estimator would ignore or that undo it."""
    for name, value in plain.items():
        if (setting := getattr(args, name)) != value:
            raise InputError(
                f"{name} is {setting!r}: the advantages of {estimator} are those of the rewards alone; take "
                f"{name}={value!r}"
            )
    loss = getattr(args, "loss_type", None)
    means = catalogue().frameworks["trl"].options["loss_type"].means or {}
    if loss is None or loss not in means:
        return
    aggregation = catalogue().aggregations[means[loss]]
    if not aggregation.one_factor:
        able = [mean for mean in means if catalogue().aggregations[means[mean]].one_factor]
        raise InputError(
            f"loss_type is {loss!r}, {aggregation.title}: completions have factors of their own there, and "
            f"a baseline changes the mean step; take {', '.join(able)}"
        )


class _Advantages:
    """TRL's trainer, of both kinds, with the advantages of an estimator of this library."""

    _native: str | None = None

    def __init__(
        self,
        *arguments: Any,
        estimator: str = "norm-weighted",
        scores: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        args = _settings(arguments, keywords)
        kind = next((plain for plain in _PLAIN if args is plain or isinstance(args, plain)), None)
        if kind is None:
            raise InputError(
                f"args is a {type(args).__name__}: this is TRL's RLOOTrainer or GRPOTrainer, whose settings "
                "are a trl.RLOOConfig or a trl.GRPOConfig"
            )
        if estimator != self._native:
            _refuse_settings(args, estimator, _PLAIN[kind])
        self.ustat_pg_estimator = estimator
        self.ustat_pg_scores = dict(scores or {})
        self.ustat_pg_table: Callable[[Any], Any] | None = None
        group = integer("num_generations", args.num_generations, 2)
        if estimator not in (self._native, "vanilla", *_WEIGHTS):
            self.ustat_pg_table = _table_advantages(estimator, group)
        super().__init__(*arguments, **keywords)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        trainer: Any = super()
        self._all_rewards = trainer._calculate_rewards(*args, **kwargs)
        return self._all_rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        above: Any = super()
        output = above._generate_and_score_completions(inputs)
        trainer: Any = self
        # TRL's evaluation may have groups of another size, and its advantages are not used.
        if self.ustat_pg_estimator == self._native or not trainer.model.training:
            return output
        size = trainer.num_generations
        rewarded = ~torch.isnan(self._all_rewards).all(dim=1)
        weighted = self._all_rewards * trainer.reward_weights.to(self._all_rewards.device)
        rewards = weighted.nansum(dim=1).double()
        if self.ustat_pg_table is not None:
            rewarded = rewarded.view(-1, size).all(dim=1).repeat_interleave(size)
            new = torch.zeros_like(rewards)
            if rewarded.any():
                new[rewarded] = self.ustat_pg_table(rewards[rewarded].view(-1, size)).flatten()
        elif self.ustat_pg_estimator == "vanilla":
            new = rewards
        else:
            weights = _WEIGHTS[self.ustat_pg_estimator](self, output).to(rewards)
            weights = trainer.accelerator.gather(weights) * rewarded
            new = norm_weighted(
                rewards.view(-1, size), squared_norms=weights.view(-1, size)
            ).flatten()
        # TRL's rule for completions without any reward is that they do not change the policy.
        new = torch.where(rewarded, new, torch.zeros_like(new))
        output["advantages"] = _replace_advantages(self, new.to(output["advantages"].dtype))
        return output


class _GRPOEstimatorTrainer(_Advantages, GRPOTrainer):
    """The form of :class:`EstimatorTrainer` with a GRPOConfig."""


class EstimatorTrainer(_Advantages, RLOOTrainer):
    """TRL's RLOOTrainer (with a GRPOConfig its GRPOTrainer) with another estimator.

    ===================== ============================================== ======================
    estimator             advantage                                      what it costs
    ===================== ============================================== ======================
    grpo                  the reward less the others' mean               nothing
    vanilla               the reward                                     nothing
    norm-weighted         reward less the others' mean by ‖sⱼ‖²          one pass of scores
    length-weighted       the same, with lengths for ‖sⱼ‖²               nothing
    token-weighted        the same, with verl's token proxy              one forward pass
    bayes:1,1 and others  the library's tables by successes              nothing
    running-table         the table of least error, learned on the way   nothing
    ===================== ============================================== ======================

    A pass of scores makes a step take about twice as long (1.8 and 1.9 times the processor time on the
    embedded models base and short, 64 completions a step).

    GRPO's clipping, its KL term in the loss, ``num_iterations`` and ``steps_per_generation`` are those of
    TRL; the formula above applies to the first step after sampling.

    Arguments:
        estimator: one of these; tables need rewards 0 and 1.
        scores: arguments of :class:`ustat_pg.llm.scores.Scores`, for ``norm-weighted``.
        arguments, keywords: TRL's own, for ``RLOOTrainer`` or ``GRPOTrainer``.

    Raises:
        InputError: the estimator is unknown, or needs values that trainers do not have; settings belong to
            another trainer, or would be ignored: for RLOO a KL penalty (``beta``), ``normalize_advantages``
            or ``reward_clip_range``, for GRPO ``scale_rewards`` other than "none"; or completions have their
            own factors in the ``loss_type``: grpo, bnpo, sapo.
    """

    _native = "grpo"

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        args = _settings(arguments, keywords)
        if cls is EstimatorTrainer and isinstance(args, GRPOConfig):
            return _GRPOEstimatorTrainer(*arguments, **keywords)
        return super().__new__(cls)


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
            scores = Scores(model, **{"sketch": None} | trainer.ustat_pg_scores)
            pairs = zip(prompts, completions, strict=True)
            asked = (
                Asked(prompt, [completion for _, completion in group])
                for prompt, group in groupby(pairs, key=lambda pair: pair[0])
            )
            for made in scores.many(asked):
                norms.extend(made.squared_norms)
    finally:
        model.train(training)
    return torch.tensor(norms, dtype=torch.float64, device=output["completion_ids"].device)


_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "norm-weighted": _squared_norms,
    "length-weighted": _lengths,
    "token-weighted": _token_proxies,
}
