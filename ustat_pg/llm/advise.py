"""Which group size for a language model, and how sure that is."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .pool import ScoredPool
from .printing import facts, finite, records

if TYPE_CHECKING:
    from ..predictions import GroupSizeAdvice
    from .constants import Decision
    from .rollouts import Progress

__all__ = ["PoolAdvice", "advise_model", "advise_pool"]

_ENOUGH = 0.05
"""Of a model that samples, how far above the least error the advised G may be before no more is drawn."""

_LOG = logging.getLogger("ustat_pg.llm")


@dataclass(frozen=True)
class PoolAdvice:
    """The advice of a scored pool.

    Arguments:
        pool: of the scores.
        decision: the constants with intervals, the advice at their estimates, and the advised group size.
        budget: outputs of a step, or with costs what a step may cost.
        better_budget: the nearest budget that a good group size divides, and that size; None with costs or
            a population.
        looks: what each look at a growing pool knew; empty where it did not grow.
    """

    pool: ScoredPool
    decision: Decision
    budget: float
    better_budget: tuple[int, int] | None
    looks: tuple[dict[str, Any], ...] = ()

    @property
    def sizes(self) -> GroupSizeAdvice:
        """The table of group sizes, at the estimates of the constants."""
        return self.decision.advice

    @property
    def group_size(self) -> int:
        """The advised G: that of the least worst error within the constants' intervals."""
        return self.decision.group_size

    @cached_property
    def critic_cost(self) -> dict[str, Any]:
        """What grpo's error exceeds the oracle's by at one prompt, with its interval."""
        from .estimates import oracle_ratio

        ratio = oracle_ratio(self.pool, [self.group_size]).iloc[0]
        return {
            "group_size": self.group_size,
            "mse_over_oracle": finite(ratio["predicted"]),
            "low": finite(ratio["low"]),
            "high": finite(ratio["high"]),
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        from .estimates import summary

        known, pool = self.decision.known, self.pool
        better = self.better_budget
        return {
            **self.sizes.to_dict(),
            **{name: getattr(known, name) for name in ("c1", "c2", "c3", "gradient_sq", "k_crit")},
            "k_crit_interval": [finite(end) for end in known.k_crit_interval()],
            **self.decision.record(),
            "looks": list(self.looks) or None,
            "better_budget": None if better is None or better[0] == self.budget else list(better),
            "on_policy_z": None if pool.on_policy_z is None else finite(pool.on_policy_z),
            "critic_cost": self.critic_cost,
            "constants": records(known.frame()),
            "pool": {
                "prompts": pool.size,
                "rollouts": pool.rollouts,
                "dtype": pool.config.get("dtype"),
                "autocast": pool.config.get("autocast_bf16"),
                "summary": records(summary(pool)),
            },
            "taken_as_zero": list(known.clipped),
        }

    def __str__(self) -> str:
        from .estimates import summary

        known, pool, size = self.decision.known, self.pool, self.group_size
        low, high = known.g_star_interval()
        lines = [facts(pool, summary(pool))]
        if "c1" in known.clipped:
            lines.append(
                "The estimate of c1, the spread of prompts' gradients, is below 0 and taken as 0: what "
                f"follows is for that case. All that this pool tells is that G* is at least {low:.3g}.\n"
            )
        lines.append(self.sizes.text(self._advised()))
        if known.k_crit is not None:
            least, most = known.k_crit_interval()
            lines.append(
                f"Critical budget, where the least error is ‖g‖²: {known.k_crit:.3g} outputs a step "
                f"(95%: {least:.3g} {_upwards(most)})."
            )
        if any(row.zero_signal_share is None for row in self.sizes.table):
            lines.append(
                f"Of groups of more than the pool's {pool.rollouts} rollouts the share with equal rewards "
                "is not known; it does not rise with G."
            )
        if self.better_budget is not None:
            lines.append(
                f"The best real G is known from {low:.3g} {_upwards(high)} (95%, {pool.size} prompts)."
            )
        if known.unbounded:
            lines.append(
                "The spread of prompts' gradients, c1, is not told from 0 by this pool: a larger group "
                "may be as good; score more prompts to know."
            )
        (batch,) = (row.batch_size for row in self.sizes.table if row.group_size == size)
        lines.append(
            f"In TRL: num_generations = {size}, {batch * size} completions a step "
            "(per-device batch x processes x steps per generation)."
        )
        lines.append(self._critic_sentence())
        if self.looks and not self.looks[-1]["settled"]:
            lines.append(
                "The prompts are used up, and not enough is known for --until: give more of them."
            )
        return "\n".join(lines)

    def _advised(self) -> str | None:
        """What to do where constants are known from an interval to another; None where they are not."""
        size, worst, near = self.group_size, self.decision.worst, self.better_budget
        if worst is None:
            return None
        told = f"Use G = {size}"
        if near is not None and near[0] != self.budget:
            told = (
                "No group size that fits this budget is within 5% of the least error: take a budget of "
                f"{near[0]} with G = {near[1]}, or here G = {size}"
            )
        told += (
            f": whatever c1, c2 and c3 are within their 95% intervals, its error is at most {worst:.3g} "
            "times the least of the group sizes above."
        )
        if size != self.sizes.g_best:
            told += f" G = {self.sizes.g_best} is the best at their estimates, and may cost more elsewhere."
        return told

    def _critic_sentence(self) -> str:
        cost, low, high = (self.critic_cost[name] for name in ("mse_over_oracle", "low", "high"))
        what = f"with G = {self.group_size}"
        if cost is None:
            return f"What not knowing the value costs {what} cannot be told from this pool."
        known = high is not None and low is not None and low > 0
        ends = f"95%: {low - 1:.1%} to {high - 1:.1%}" if known else "its error is not known"
        return f"Not knowing the value costs {cost - 1:.1%} of error at one prompt {what} ({ends})."


def advise_pool(
    pool: ScoredPool | str | Path,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    off_policy: bool = False,
) -> PoolAdvice:
    """Which group size a scored pool advises, and how sure that is.

    Arguments:
        pool: a scored pool, or its file.
        budget, prompt_cost, output_cost, population: those of
            :func:`~ustat_pg.predictions.group_size_advice`.
        off_policy: go on with rollouts that another policy seems to have drawn.

    Raises:
        InputError: as that function says, rollouts of another policy, or no group with a signal.
    """
    from .model_pool import refuse_another_policy

    if not isinstance(pool, ScoredPool):
        pool = ScoredPool.load(pool)
    refuse_another_policy(pool, off_policy)
    costs = {"prompt_cost": prompt_cost, "output_cost": output_cost, "population": population}
    return _advice(pool, budget, costs)


def advise_model(
    model: str,
    budget: float,
    *,
    until: str | float | None = None,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    progress: Progress | None = None,
    **pool: Any,
) -> PoolAdvice:
    """Which group size for a language model and its prompts: samples, scores and asks the pool.

    Arguments:
        model: a hub id, a local folder, or embedded:NAME.
        budget, prompt_cost, output_cost, population: those of
            :func:`~ustat_pg.predictions.group_size_advice`.
        until: take more and more prompts until the advised G costs at most so much over the least error, or
            every G in the interval of G* is within 5% of it ("flat"), or all are taken ("all"). 0.05 unless
            given, and all where ``limit`` or ``rollouts`` say how many.
        progress: called after each prompt.
        pool: prompts, samples and the other settings of :class:`~ustat_pg.llm.model_pool.ModelPool`.

    Raises:
        InputError: as these say, or "flat" with costs or a population.
    """
    from .constants import decide
    from .model_pool import ModelPool

    wanted = ModelPool(model=model, **pool)
    costs = {"prompt_cost": prompt_cost, "output_cost": output_cost, "population": population}
    if not _costly(costs):
        # Before anything is sampled.
        integer("budget", budget, 2)
    if until is None and wanted.limit is None and wanted.rollouts is None:
        until = _ENOUGH
    until = None if until == "all" else until
    if until == "flat" and (_costly(costs) or population is not None):
        raise InputError(
            "--until flat is of G* where outputs alone cost, and prompts are drawn anew: with costs or a "
            "population write the loss that will do, --until 5% for example"
        )
    looks: list[dict[str, Any]] = []
    with closing(wanted.pools(progress, looks=until is not None)) as pools:
        for found in pools:
            if until is None:
                continue
            decided = decide(found, budget, costs) if found.size > 1 else None
            enough = decided is not None and decided.settles(until)
            known = decided.record() if decided else {}
            looks.append({"prompts": found.size, **known, "settled": enough})
            so = "going on" if len(looks) < found.looks else "there are no more"
            _LOG.info(
                "look %d of %d: %d prompts, %s: %s",
                *(len(looks), found.looks, found.size),
                *(decided or "no group has a signal", "enough" if enough else so),
            )
            if enough:
                break
    return _advice(found, budget, costs, tuple(looks))


def _costly(costs: dict[str, Any]) -> bool:
    return costs["output_cost"] is not None or bool(costs["prompt_cost"])


def _advice(
    pool: ScoredPool, budget: float, costs: dict[str, Any], looks: tuple[dict[str, Any], ...] = ()
) -> PoolAdvice:
    from ..predictions import near_budget
    from .constants import decide

    decided = decide(pool, budget, costs)
    if decided is None:
        raise InputError(
            "all rewards of each prompt are equal: no group of this pool has a signal, and nothing "
            "can be said of the group size; take other prompts or more rollouts"
        )
    near = None
    if not _costly(costs) and costs["population"] is None:
        near = near_budget(decided.known.predictions(), int(budget))
    return PoolAdvice(pool, decided, budget, near, looks)


def _upwards(end: float) -> str:
    return f"to {end:.3g}" if np.isfinite(end) else "without an upper end"
