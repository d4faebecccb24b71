"""The plan of a monitor for a run, from the options of TRL's trainer and its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...validation import InputError
from .batches import kinds, mixes, option, population, refuse_shared_outputs

_PARTS = 4
"""The number of parts of a group with which φ/τ is measured; more parts do not improve φ/τ or the signal."""


@dataclass(frozen=True)
class Plan:
    """The plan of a monitor for a run.

    Arguments:
        apart: whether hooks on layers separate outputs.
        measures: whether φ/τ is measured.
        rows: whether rows of the data set are drawn, even if two rows have the same prompt.
        leave_one_out: whether advantages are leave-one-out up to a factor.
        sorts: whether outputs of a step may be sorted by their groups.
        deals: number of micro-batches among which neighbouring groups are then dealt out.
        population: number of prompts of the data set, if they are drawn without replacement.
        repeats: how often a step uses each of its completions before the policy changes.
        said: messages to the user.
    """

    apart: bool
    measures: bool
    rows: bool
    leave_one_out: bool
    sorts: bool
    deals: int
    population: int | None
    repeats: int
    said: tuple[str, ...]

    @classmethod
    def of(
        cls,
        trainer: Any,
        sharded: bool,
        *,
        metric: str,
        per_completion: bool,
        detail: bool,
        phi_over_tau: float | None,
    ) -> Plan:
        """The plan for a trainer, with or without ``sharded`` parameters; the other arguments are the
        monitor's.

        Raises:
            InputError: the run cannot be measured in this way.
        """
        refuse_shared_outputs(trainer)
        args, size, mixing = trainer.args, trainer.num_generations, mixes(trainer)
        batches, each = args.gradient_accumulation_steps, args.per_device_train_batch_size
        euclidean, compiled = metric != "adam", args.torch_compile
        loss, loo = kinds(trainer)
        if sharded and not euclidean:
            raise InputError("metric='adam' needs whole gradients, but parameters are sharded")
        layered = detail and not compiled
        measures = loo and phi_over_tau is None and size > 2
        # Sharded gradients are reduced only at the last micro-batch of a step.
        apart = euclidean and (per_completion or (measures and layered) or sharded)
        if apart and compiled:
            raise InputError(
                "hooks on layers separate outputs, but a compiled model does not run hooks: set "
                "torch_compile=False"
            )
        if per_completion and (mixing or (option(trainer, "beta") and loss != "rloo")):
            raise InputError("per_completion needs a loss without penalty, entropy or router loss")
        if per_completion and not apart and each > 1:
            raise InputError("per_completion needs per_device_train_batch_size=1 in Adam's metric")
        said = []
        if sharded:
            said.append(
                "parameters are sharded, so hooks on layers separate outputs; this takes 6% of "
                "the time of passes for a model of 27 million parameters"
            )
        if batches * trainer.accelerator.num_processes < 2 and not apart:
            said.append("a step is one micro-batch, so two steps in a row are measured as one")
        if (drawn_from := population(trainer)) is None:
            said.append(
                "the sampler of prompts is not TRL's: if it draws them without replacement from "
                "a set of X, the signal is too small by c₁/(X-1)"
            )
        passes, rest = divmod(batches, args.steps_per_generation)
        repeats = 1 if rest else max(1, min(option(trainer, "num_iterations"), passes))
        total = batches // repeats * trainer.accelerator.num_processes
        # A group in four parts determines φ/τ, and a group in two parts has pairs in two micro-batches. Other
        # micro-batches must not share a group.
        parts = _PARTS if measures else 2 if loo or drawn_from is not None else 1
        parts = min(parts, args.steps_per_generation, total // 2)
        return cls(
            apart=apart,
            measures=measures,
            rows=drawn_from is not None and bool(option(trainer, "shuffle_dataset", True)),
            leave_one_out=loo,
            # A sum over the completions of a step does not depend on their order.
            sorts=not (rest or loss == "bnpo" or mixing or apart),
            deals=max(1, parts),
            population=drawn_from,
            repeats=repeats,
            said=tuple(said),
        )
