"""What a monitor does in a run, by the options of TRL's trainer and its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...validation import InputError
from .batches import kinds, mixes, option, population, refuse_shared_outputs

_PARTS = 4
"""Parts of a group by which φ/τ is measured; more make neither this nor the signal any better."""


@dataclass(frozen=True)
class Plan:
    """What a monitor does in a run.

    Arguments:
        apart: whether hooks on layers separate outputs.
        measures: whether φ/τ is measured.
        rows: whether rows of the data set are what is drawn, also where two have one prompt.
        leave_one_out: whether advantages are leave-one-out up to a factor.
        sorts: whether outputs of a step may be sorted by their groups.
        deals: among how many micro-batches groups that lie side by side are dealt then.
        population: the prompts of the data set, where they are drawn without replacement.
        repeats: how often a step passes over each of its completions, before the policy moves.
        said: what a user is told.
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
        """The plan for a trainer, whose parameters may be ``sharded``; the rest is the monitor's own.

        Raises:
            InputError: the run cannot be measured so.
        """
        refuse_shared_outputs(trainer)
        args, size, mixing = trainer.args, trainer.num_generations, mixes(trainer)
        batches, each = args.gradient_accumulation_steps, args.per_device_train_batch_size
        euclidean, compiled = metric == "euclidean", args.torch_compile
        loss, loo = kinds(trainer)
        if sharded and not euclidean:
            raise InputError("metric='adam' takes whole gradients, and parameters are sharded")
        layered = detail and not compiled
        measures = loo and phi_over_tau is None and size > 2
        # Sharded gradients are reduced at the last micro-batch of a step alone.
        apart = euclidean and (per_completion or (measures and layered) or sharded)
        if apart and compiled:
            raise InputError(
                "hooks on layers separate outputs, and a compiled model does not run them: set "
                "torch_compile=False"
            )
        if per_completion and (mixing or (option(trainer, "beta") and loss != "rloo")):
            raise InputError("per_completion takes no penalty, entropy or router loss in the loss")
        if per_completion and not apart and each > 1:
            raise InputError("per_completion takes per_device_train_batch_size=1 in Adam's metric")
        said = []
        if sharded:
            said.append(
                "parameters are sharded, so hooks on layers separate outputs, which takes 6% of the time of "
                "passes of a model of 27 million parameters"
            )
        if batches * trainer.accelerator.num_processes < 2 and not apart:
            said.append("a step is one micro-batch, so two steps in a row are measured as one")
        if (drawn_from := population(trainer)) is None:
            said.append(
                "prompts are drawn by a sampler that is not TRL's: if it draws them without replacement from "
                "a set of X, the signal is c₁/(X-1) too small"
            )
        passes, rest = divmod(batches, args.steps_per_generation)
        repeats = 1 if rest else max(1, min(option(trainer, "num_iterations"), passes))
        total = batches // repeats * trainer.accelerator.num_processes
        # A group in four parts tells φ/τ, and one in two has pairs in two micro-batches. Others must have no
        # group in common.
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
