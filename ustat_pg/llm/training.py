"""One training run's settings as TRL takes them, and how far its step is from the theory's.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..baselines import BASELINES
from ..estimators import RunningTable, advantages
from ..validation import InputError, integer
from .budgets import refuse_group_size

__all__ = ["OURS", "TRAINERS", "TrainerKind", "Training", "table_advantages"]

OURS: Mapping[str, str] = MappingProxyType(
    {
        "num_generations": "group_size",
        "max_steps": "steps",
        "max_completion_length": "max_new_tokens",
        "per_device_train_batch_size": "micro_batch",
        "optim": "optimizer",
        "save_steps": "save_every",
        "learning_rate": "learning_rate",
        "seed": "seed",
    }
)
"""TRL's arguments that are fields of a :class:`Training`, with the fields' names."""


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
_WEIGHTED = ("norm-weighted", "length-weighted", "token-weighted")

TRAINERS: Mapping[str, TrainerKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            TrainerKind("rloo", "rloo", "grpo", _one),
            *(TrainerKind(name, "rloo", name, _one) for name in ("vanilla", *_WEIGHTED)),
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


def table_advantages(name: str, group_size: int) -> Callable[[Any], Any]:
    """From rewards (B, G) to advantages, by a table's name.

    Raises:
        InputError: no table goes by the name, or not at this group size.
    """
    if name == _RUNNING:
        return RunningTable(group_size).advantages
    if name == "best":
        raise InputError(
            f"best is the table of known prompts: take {_RUNNING}, which learns it on the way"
        )
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

OPTIMIZERS = MappingProxyType({"sgd": "sgd", "adamw": "adamw_torch"})
"""Short names of optimizers; any other name is passed on to TRL as it is."""


@dataclass(frozen=True)
class Training:
    """One training run as data; :meth:`arguments` are TRL's.

    Arguments:
        group_size: G, completions of one prompt.
        budget: K = B G, completions of one step, over all processes.
        steps: optimizer steps.
        learning_rate: η, constant.
        trainer: ``rloo``, the step of the theory, another of the table above, or a table by counts
            such as ``bayes:1,1``.
        max_new_tokens: the greatest completion length, Lmax; of a :class:`~ustat_pg.llm.runs.Run` the
            task's own unless given.
        seed: of prompts' order and completions.
        micro_batch: completions of one forward and backward pass on one device.
        processes: how many processes share a step.
        optimizer: ``sgd``, the one of the theory, ``adamw``, or TRL's name of another.
        device: ``cpu``, or ``cuda`` for what torch finds.
        save_every: steps between checkpoints from which a run continues; 0 for none.
        options: further arguments of TRL's configuration, such as ``report_to``, ``bf16`` or
            ``use_vllm``; they go before what is set here.

    Raises:
        InputError: a field is out of range; the budget cannot hold the group size (those it can are
            named) or the micro-batches; an option belongs to another field.
    """

    group_size: int
    budget: int
    steps: int
    learning_rate: float
    trainer: str = "rloo"
    max_new_tokens: int | None = 256
    seed: int = 0
    micro_batch: int = field(default=8, kw_only=True)
    processes: int = field(default=1, kw_only=True)
    optimizer: str = field(default="sgd", kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    save_every: int = field(default=0, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what TRL would refuse late, or not at all."""
        kind = self.kind
        for name, least in (
            ("group_size", 2),
            ("budget", 2),
            ("steps", 1),
            ("micro_batch", 1),
            ("processes", 1),
            ("seed", 0),
            ("save_every", 0),
        ):
            integer(name, getattr(self, name), least)
        if self.max_new_tokens is not None:
            integer("max_new_tokens", self.max_new_tokens, 1)
        rate = self.learning_rate
        if not isinstance(rate, Real) or not isfinite(rate) or rate <= 0:
            raise InputError(f"learning_rate is {rate!r}: it must be a positive number")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise InputError(f"device is {self.device!r}: it must be cpu or cuda")
        refuse_group_size(self.group_size, self.budget)
        share, rest = divmod(self.budget, self.processes)
        if rest or share % self.micro_batch:
            sizes = [str(size) for size in range(1, share + 1) if share % size == 0]
            choice = f"choose a micro-batch of {', '.join(sizes)}"
            raise InputError(
                f"{self.processes} process(es) with micro-batches of {self.micro_batch} do not make "
                f"up a budget of {self.budget}: "
                + ("the number of processes must divide the budget" if rest else choice)
            )
        ours = {*self._ours(), "output_dir", "generation_batch_size"}
        taken = sorted(ours & set(self.options))
        if taken:
            raise InputError(
                f"options hold {', '.join(taken)}: set the field of the training that they follow from"
            )
        if self.trainer not in TRAINERS:
            table_advantages(self.trainer, self.group_size)
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

    @property
    def _plain(self) -> dict[str, Any]:
        """Settings of the plain step, by TRL's names."""
        return dict(_PLAIN) | (dict(_RLOO_PLAIN) if self.kind.algorithm == "rloo" else {})

    def deviations(self) -> dict[str, Any]:
        """Settings that make the step another than the plain one, with their values.

        >>> Training(4, 8, 1, 0.1, optimizer="adamw", options={"beta": 0.05}).deviations()
        {'beta': 0.05, 'optim': 'adamw_torch'}
        """
        wanted = self._plain
        have = wanted | {"optim": self._ours()["optim"]} | dict(self.options)
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
        return self.kind.factor(self.group_size, self.max_new_tokens or 1)

    def _ours(self) -> dict[str, Any]:
        """TRL's arguments that follow from other fields, so that options may not hold them."""
        return {name: getattr(self, own) for name, own in OURS.items()} | {
            "optim": OPTIMIZERS.get(self.optimizer, self.optimizer),
            "learning_rate": float(self.learning_rate),
            "gradient_accumulation_steps": self.accumulation,
            # Equal to the accumulation: otherwise later steps reuse old completions.
            "steps_per_generation": self.accumulation,
            "use_cpu": self.device == "cpu",
            # training_set has them in the order of the steps.
            "shuffle_dataset": False,
            "save_strategy": "steps" if self.save_every else "no",
            "save_steps": self.save_every or 500,
        }

    def arguments(self, out: Path | str) -> dict[str, Any]:
        """The arguments of TRL's ``RLOOConfig`` or ``GRPOConfig``; ``out`` is its output folder."""
        found = self._plain | {
            "output_dir": str(out),
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_dropout": True,
            "logging_steps": 1,
            "report_to": "none",
            "disable_tqdm": True,
            "save_total_limit": 1,
        }
        if self.kind.algorithm == "grpo" and self.kind.factor is not None:
            # The correction's truncated weights make another estimator of it.
            found["vllm_importance_sampling_correction"] = False
        return found | dict(self.kind.arguments) | dict(self.options) | self._ours()

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
