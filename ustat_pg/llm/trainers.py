"""TRL trainers whose plain step is the gradient of the theory, and how far others are from it.

One step of plain SGD should move the parameters by η ĝ with

    ĝ = (1/(BG)) Σᵢ sᵢ Aᵢ,   Aᵢ = zᵢ - baselineᵢ,

s the score of the whole completion. What a trainer's step is instead, at the same completions:

=================== =========== =============================== =================
name                baseline    TRL                             step / (η ĝ)
=================== =========== =============================== =================
``rloo``            grpo        ``RLOOTrainer(beta=0)``         1
``vanilla``         vanilla     the same, other advantages      1
``norm-weighted``   ‖s‖²        the same, other advantages      1
``length-weighted`` tokens      the same, other advantages      1
``token-weighted``  token proxy the same, other advantages      1
``grpo-corrected``  grpo        ``GRPOTrainer``, loss ``luspo`` 1
``dr-grpo``         group mean  ``GRPOTrainer``, ``dr_grpo``    (G-1)/(G Lmax)
``grpo-stock``      group mean  ``GRPOTrainer``, its defaults   another direction
a table's name      the table   as ``vanilla``                  1
``running-table``   learned     as ``vanilla``                  1
=================== =========== =============================== =================

A table by the number of successes goes by its name with its numbers, such as ``bayes:1,1`` or
``loo-table:0.2,0.5``, and ĝ has its advantages. ``running-table`` is
:class:`ustat_pg.estimators.RunningTable`, learned from the steps before. A group with a missing reward
does not move the policy, and the table does not learn from it.

The weighted ones are leave-one-out means, Σ_{j≠i} wⱼ zⱼ / Σ_{j≠i} wⱼ, and so unbiased:
the practical forms of the minimum-variance baseline (Corollary 5, optimality). In place of ‖s‖²
one may take its proxies, the number of tokens or Σₜ (1 - 2πₜ + Σᵥ πᵥ²), which cost no backward pass.
``grpo-stock`` has the defaults of loss and scaling; the optimizer is the run's all the same.
A factor that depends on G, as that of ``dr-grpo``, confounds the group size with the learning rate.

The tests measure the last column.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..baselines import BASELINES
from ..estimators import RunningTable, advantages, norm_weighted
from ..validation import InputError, integer
from .models import LanguageModel
from .prompts import Task, VerifierError

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

__all__ = [
    "TRAINERS",
    "Execution",
    "TrainerKind",
    "Training",
    "allowed_group_sizes",
    "build_trainer",
    "reward_function",
    "training_set",
]

_LOGITS_BYTES = 2**28
"""How much of float32 logits the token proxy holds at a time."""


@dataclass(frozen=True)
class TrainerKind:
    """A trainer by name: TRL's class, its baseline, its own arguments and its step's factor.

    ``factor`` takes the group size and the greatest completion length; it is None where the step
    has another direction than ĝ.
    """

    name: str
    algorithm: str
    baseline: str
    factor: Callable[[int, int], float] | None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _one(group_size: int, longest: int) -> float:
    return 1.0


def _group_mean(group_size: int, longest: int) -> float:
    return (group_size - 1) / (group_size * longest)


_UNSCALED = {"scale_rewards": "none", "importance_sampling_level": "token"}

TRAINERS: Mapping[str, TrainerKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            TrainerKind("rloo", "rloo", "grpo", _one),
            TrainerKind("vanilla", "rloo", "vanilla", _one),
            TrainerKind("norm-weighted", "rloo", "norm-weighted", _one),
            TrainerKind("length-weighted", "rloo", "length-weighted", _one),
            TrainerKind("token-weighted", "rloo", "token-weighted", _one),
            TrainerKind("grpo-corrected", "grpo", "grpo", _one, {"loss_type": "luspo"} | _UNSCALED),
            TrainerKind(
                "dr-grpo", "grpo", "group-mean", _group_mean, {"loss_type": "dr_grpo"} | _UNSCALED
            ),
            TrainerKind("grpo-stock", "grpo", "group-mean", None),
        )
    }
)
"""Trainers by name."""

_RUNNING = "running-table"


def _table(name: str, group_size: int) -> Callable[[Any], Any]:
    """From rewards (B, G) to advantages, by a table's name.

    Raises:
        InputError: no table goes by the name, or not at this group size.
    """
    if name == _RUNNING:
        return RunningTable(group_size).advantages
    # Refused now, and not at the first step.
    advantages(name, np.zeros(group_size))
    return partial(advantages, name)


_PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "beta": 0.0,
        "num_iterations": 1,
        "optim": "sgd",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "mask_truncated_completions": False,
    }
)
"""Settings under which a step is the plain one; TRL's own defaults are others."""

_RLOO_PLAIN: Mapping[str, Any] = MappingProxyType(
    {"normalize_advantages": False, "reward_clip_range": None}
)

_OURS = frozenset(
    {
        "bf16",
        "generation_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "learning_rate",
        "max_completion_length",
        "max_steps",
        "num_generations",
        "output_dir",
        "per_device_train_batch_size",
        "save_steps",
        "save_strategy",
        "seed",
        "shuffle_dataset",
        "steps_per_generation",
        "use_cpu",
        "use_vllm",
    }
)
"""TRL arguments that follow from the other fields of :class:`Training`."""

OPTIMIZERS = MappingProxyType({"sgd": "sgd", "adamw": "adamw_torch"})
"""Short names of optimizers; any other name is passed on to TRL as it is."""


def allowed_group_sizes(budget: int, prompts: int | None = None) -> tuple[int, ...]:
    """The group sizes that a budget of completions can hold: divisors of at least 2.

    With B = budget/G prompts in a step there must be as many prompts, since TRL draws those of a
    step without replacement and drops what does not fill one.

    Arguments:
        budget: completions of one step, K = B G.
        prompts: how many prompts there are, if that limits B.

    Raises:
        InputError: the budget is not a whole number of at least 2.

    >>> allowed_group_sizes(32)
    (2, 4, 8, 16, 32)
    >>> allowed_group_sizes(32, prompts=5)
    (8, 16, 32)
    """
    budget = integer("budget", budget, 2)
    fewest = 2 if prompts is None else max(2, -(-budget // prompts))
    return tuple(size for size in range(fewest, budget + 1) if budget % size == 0)


def refuse_group_size(group_size: int, budget: int, prompts: int | None = None) -> None:
    """Refuse a group size that the budget cannot hold, with those that it can.

    Raises:
        InputError: the group size does not divide the budget, or needs more prompts than there are.

    >>> refuse_group_size(8, 20)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: group size 8 does not divide the budget of 20 completions: ...
    """
    allowed = allowed_group_sizes(budget, prompts)
    if group_size in allowed:
        return
    choices = ", ".join(map(str, allowed))
    if group_size < 2:
        what = f"group size is {group_size}: it must be at least 2"
    elif budget % group_size:
        what = f"group size {group_size} does not divide the budget of {budget} completions"
    else:
        what = (
            f"group size {group_size} at a budget of {budget} completions needs "
            f"{budget // group_size} prompts in a step and there are {prompts}"
        )
    raise InputError(f"{what}: choose one of {choices}")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is carried out.

    Arguments:
        micro_batch: completions of one forward and backward pass on one device.
        processes: how many processes share a step.
        optimizer: ``sgd``, for which the table above holds, ``adamw``, or TRL's name of another.
        device: ``cpu``, or ``cuda`` for what torch finds.
        bf16: matrix products in bfloat16, parameters as they were loaded.
        checkpointing: recompute activations in the backward pass.
        vllm: None, or TRL's arguments about vLLM without their prefix, such as {"mode": "colocate"}.
        save_every: steps between checkpoints from which a run continues; 0 for none.
        options: further arguments of TRL's configuration, such as ``report_to``; they go before what
            is set here.
    """

    micro_batch: int = 8
    processes: int = 1
    optimizer: str = "sgd"
    device: str = "cpu"
    bf16: bool = False
    checkpointing: bool = False
    vllm: Mapping[str, Any] | None = None
    save_every: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Training(Execution):
    """One training run as data; :meth:`arguments` are TRL's.

    Arguments:
        group_size: G, completions of one prompt.
        budget: K = B G, completions of one step, over all processes.
        steps: optimizer steps.
        learning_rate: η, constant.
        trainer: one of :data:`TRAINERS`, ``running-table``, or a table by counts such as
            ``bayes:1,1``.
        max_new_tokens: the greatest completion length, Lmax.
        seed: of prompts' order and completions.

    Raises:
        InputError: a field is out of range; the budget cannot hold the group size (those it can are
            named) or the micro-batches; an option belongs to another field.
    """

    group_size: int
    budget: int
    steps: int
    learning_rate: float
    trainer: str = "rloo"
    max_new_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what TRL would refuse late, or not at all."""
        kind = self.kind
        for name, least in (
            ("group_size", 2),
            ("budget", 2),
            ("steps", 1),
            ("max_new_tokens", 1),
            ("micro_batch", 1),
            ("processes", 1),
            ("seed", 0),
            ("save_every", 0),
        ):
            integer(name, getattr(self, name), least)
        rate = self.learning_rate
        if not isinstance(rate, Real) or not isfinite(rate) or rate <= 0:
            raise InputError(f"learning_rate is {rate!r}: it must be a positive number")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"device is {self.device!r}: it must be cpu or cuda")
        refuse_group_size(self.group_size, self.budget)
        if self.budget % (self.micro_batch * self.processes):
            shares = [
                size
                for size in range(1, self.budget // self.processes + 1)
                if self.budget % (size * self.processes) == 0
            ]
            raise InputError(
                f"{self.processes} process(es) with micro-batches of {self.micro_batch} do not "
                f"make up a budget of {self.budget}: "
                + (
                    f"choose a micro-batch of {', '.join(map(str, shares))}"
                    if shares
                    else "the number of processes must divide the budget"
                )
            )
        taken = sorted(_OURS & set(self.options))
        if taken:
            raise InputError(
                f"options hold {', '.join(taken)}: set the field of the training that they follow from"
            )
        if self.trainer not in TRAINERS:
            _table(self.trainer, self.group_size)
        if self.trainer == _RUNNING and self.save_every:
            raise InputError(
                f"save_every is {self.save_every} and a checkpoint does not hold the {_RUNNING}: "
                "leave it out"
            )
        if kind.algorithm == "rloo" and kind.baseline != "grpo":
            changed = [name for name in self.deviations() if name in ("beta", *_RLOO_PLAIN)]
            if changed:
                raise InputError(
                    f"trainer {self.trainer} computes its own advantages from the rewards: "
                    f"{', '.join(changed)} would not enter, leave it out"
                )

    @property
    def kind(self) -> TrainerKind:
        """The entry of :data:`TRAINERS`, or RLOO with a table's advantages.

        Raises:
            InputError: no trainer and no table goes by the name.
        """
        if self.trainer in TRAINERS:
            return TRAINERS[self.trainer]
        tables = [
            name for name, record in BASELINES.items() if record.by_count and not record.needs
        ]
        if self.trainer != _RUNNING and str(self.trainer).partition(":")[0] not in tables:
            raise InputError(
                f"trainer {self.trainer!r} is unknown: choose one of {', '.join(TRAINERS)}, {_RUNNING}, "
                f"or a table by counts with its numbers ({', '.join(tables)})"
            )
        return TrainerKind(self.trainer, "rloo", self.trainer, _one)

    @property
    def accumulation(self) -> int:
        """Micro-batches of one step on one process."""
        return self.budget // (self.micro_batch * self.processes)

    @property
    def prompts(self) -> int:
        """B, prompts of one step."""
        return self.budget // self.group_size

    def deviations(self) -> dict[str, Any]:
        """Settings that make the step another than the plain one, with their values.

        >>> Training(4, 8, 1, 0.1, optimizer="adamw", options={"beta": 0.05}).deviations()
        {'beta': 0.05, 'optim': 'adamw_torch'}
        """
        wanted = dict(_PLAIN) | (dict(_RLOO_PLAIN) if self.kind.algorithm == "rloo" else {})
        have = wanted | {"optim": OPTIMIZERS.get(self.optimizer, self.optimizer)}
        have |= dict(self.options)
        return {name: have[name] for name in wanted if have[name] != wanted[name]}

    def step_factor(self) -> float | None:
        """Step over η ĝ at the same completions; None where it is not a multiple of ĝ.

        >>> Training(4, 8, 1, 0.1, trainer="dr-grpo", max_new_tokens=10).step_factor()
        0.075
        >>> Training(4, 8, 1, 0.1, optimizer="adamw").step_factor() is None
        True
        """
        if self.kind.factor is None or self.deviations():
            return None
        return self.kind.factor(self.group_size, self.max_new_tokens)

    def arguments(self, out: Path | str) -> dict[str, Any]:
        """The arguments of TRL's ``RLOOConfig`` or ``GRPOConfig``; ``out`` is its output folder."""
        found: dict[str, Any] = dict(_PLAIN)
        if self.kind.algorithm == "rloo":
            found |= _RLOO_PLAIN
        found |= {
            "output_dir": str(out),
            "num_generations": self.group_size,
            "per_device_train_batch_size": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            # Equal to the accumulation: otherwise later steps reuse old completions.
            "steps_per_generation": self.accumulation,
            "max_steps": self.steps,
            "learning_rate": float(self.learning_rate),
            "optim": OPTIMIZERS.get(self.optimizer, self.optimizer),
            "max_completion_length": self.max_new_tokens,
            "seed": self.seed,
            "use_cpu": self.device == "cpu",
            "bf16": self.bf16,
            "gradient_checkpointing": self.checkpointing,
            "disable_dropout": True,
            # training_set has them in the order of the steps.
            "shuffle_dataset": False,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "steps" if self.save_every else "no",
            "save_steps": self.save_every or 500,
            "save_total_limit": 1,
        }
        found |= self.kind.arguments
        if self.vllm is not None:
            found["use_vllm"] = True
            found |= {f"vllm_{name}": value for name, value in self.vllm.items()}
            if self.kind.algorithm == "grpo" and self.kind.factor is not None:
                # The correction's truncated weights make another estimator of it.
                found.setdefault("vllm_importance_sampling_correction", False)
        return found | dict(self.options)

    def configuration(self, out: Path | str) -> Any:
        """TRL's configuration object.

        Raises:
            InputError: TRL refuses an argument; the message is its own.
        """
        from trl import GRPOConfig, RLOOConfig

        made = GRPOConfig if self.kind.algorithm == "grpo" else RLOOConfig
        try:
            with warnings.catch_warnings():
                # transformers renames it; TRL, whose default is the other value, has not.
                warnings.filterwarnings("ignore", message="`gradient_checkpointing` is deprecated")
                return made(**self.arguments(out))
        except (TypeError, ValueError) as error:
            raise InputError(f"TRL refuses the configuration of {self.trainer}: {error}") from error


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
        made.ustat_pg_table = _table(training.trainer, training.group_size)
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
            chosen = output["completion_ids"][part]
            log_all = torch.log_softmax(logits.float(), dim=-1)
            own = log_all.gather(-1, chosen[..., None])[..., 0].exp()
            each = 1 - 2 * own + log_all.exp().square().sum(dim=-1)
            counted = output["completion_mask"][part]
            found.append((each.clamp(min=0).double() * counted).sum(dim=1))
    return torch.cat(found)


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
    prompts = [
        tuple(row[kept.bool()].tolist())
        for row, kept in zip(output["prompt_ids"], output["prompt_mask"], strict=True)
    ]
    completions = [
        tuple(row[kept.bool()].tolist())
        for row, kept in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]
    training = model.training
    model.eval()
    found: list[float] = []
    try:
        with torch.enable_grad():
            scores = Scores(model, **trainer.ustat_pg_scores)
            start = 0
            while start < len(prompts):
                stop = start + 1
                while stop < len(prompts) and prompts[stop] == prompts[start]:
                    stop += 1
                found.extend(scores.norms(prompts[start], completions[start:stop]))
                start = stop
    finally:
        model.train(training)
    return torch.tensor(found, dtype=torch.float64, device=output["completion_ids"].device)


_WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "norm-weighted": _squared_norms,
    "length-weighted": _lengths,
    "token-weighted": _token_proxies,
}
