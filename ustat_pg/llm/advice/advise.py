"""The advice on the group size for a language model, with its uncertainty."""

from __future__ import annotations

import logging
import math
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...catalogue.choice import Choice, choose, in_use
from ...display.numbers import readable
from ...display.shown import plain
from ...predictions import (
    Decision,
    MseConstants,
    decision,
    group_size_advice,
    near_budget,
    prompts_to_settle,
)
from ...predictions.advice import Advice
from ...validation import InputError, number
from ..pool.constants import constants
from ..pool.metrics import Metrics, metrics
from ..pool.moments import frac_reward_zero_std, gradients, prompt_moments
from ..pool.printing import ends, facts, finite, reasons
from ..pool.scored import ScoredPool
from ..pool.tables import group_moments
from .model_pool import ModelPool, look_sizes, refuse_another_policy

if TYPE_CHECKING:
    from ...predictions import AdaptiveAdvice, DrawingAdvice, MemoryAdvice
    from ..pool.constants import ConstantsEstimate
    from ..pool.estimates import Dominant
    from ..rollouts.stored import Progress


_ENOUGH = 0.05
"""Sampling stops if the error at the advised G exceeds the least error by at most this share."""

_LOG = logging.getLogger("ustat_pg.llm")


@dataclass(frozen=True)
class PoolAdvice(Advice):
    """The advice of a scored pool.

    Arguments:
        pool: the scored pool.
        constants: c1, c2, c3 and G*, with intervals.
        sizes: the table of group sizes, at the estimates of the constants.
        decision: the advised G, its worst-case loss, and the G that are not ruled out.
        settled_by: approximate total number of prompts that would decide the group size; None if it is
            decided, or if the number is unknown.
        budget: outputs per step, or with costs the largest cost of a step.
        better_budget: the nearest budget that a good group size divides, and that size; None if there are
            costs or a population.
        looks: the numbers at each look at a growing pool; empty if it did not grow.
        adaptive: comparison of two-stage groups with fixed ones, if requested.
        choice: comparison of estimators and group sizes with a trainer's options, if these are given.
        metrics: the constants in other metrics, if the pool was scored for an optimizer.
        drawing: law of prompts and its saving at that group size, if requested.
        memory: the group size with a memory of earlier rewards, if requested.
    """

    pool: ScoredPool
    constants: ConstantsEstimate
    decision: Decision
    settled_by: int | None
    budget: float
    better_budget: tuple[int, int] | None
    looks: tuple[dict[str, Any], ...] = ()
    adaptive: AdaptiveAdvice | None = None
    choice: Choice | None = None
    metrics: Metrics | None = None
    drawing: DrawingAdvice | None = None
    memory: MemoryAdvice | None = None

    @property
    def group_size(self) -> int:
        """The advised G."""
        return self.decision.group_size

    def _answer(self) -> dict[str, Any]:
        """The numbers of the advice for JSON: G* with its interval, the G within 5%, and the advised G with
        its worst loss.
        """
        return {
            "g_star": finite(self.constants.g_star.value),
            "g_star_interval": plain(self.constants.g_star.interval),
            "g_interval": list(self.sizes.g_interval),
            "group_size": self.group_size,
            "worst_ratio": finite(self.decision.worst),
            "ends_known": self.decision.known,
            "not_ruled_out": list(self.decision.not_ruled_out),
            "settled_by": self.settled_by,
        }

    def line(self) -> str:
        """The numbers of the advice in one line."""
        star, (least, most) = self.constants.g_star, self.sizes.g_interval
        head = f"G* {readable(star.value)}" if math.isfinite(star.value) else "G* unknown"
        loss = f"at most {self.decision.worst - 1:.1%}"
        if not self.decision.known:
            loss += "  if c2/c3 equals its estimate; ends of intervals are not known"
        return (
            f"{head} (95%: {ends(*star.interval)}), G from {least} to {most} within 5%, loss of "
            f"G = {self.group_size} {loss}"
        )

    @cached_property
    def dominant(self) -> Dominant | None:
        """The prompt that contributes most of E‖g(X)‖², if there is one."""
        from ..pool.estimates import dominant

        return dominant(self.pool)

    @cached_property
    def critic_cost(self) -> dict[str, Any]:
        """The error of grpo divided by that of the oracle at one prompt, with its interval."""
        from ..pool.estimates import oracle_ratio

        ratio = oracle_ratio(self.pool, [self.group_size]).iloc[0]
        low, value, high = (finite(ratio[name]) for name in ("low", "predicted", "high"))
        return {"group_size": self.group_size, "mse_over_oracle": value, "low": low, "high": high}

    def to_dict(self) -> dict[str, Any]:
        """The advice as a dict for JSON."""
        from ..pool.estimates import summary

        estimates, pool = self.constants, self.pool
        better = self.better_budget
        return {
            **self.sizes.to_dict(),
            **{name: estimates.estimates[name].value for name in ("c1", "c2", "c3")},
            "gradient_sq": estimates.signal.value,
            "k_crit": finite(estimates.k_crit.value),
            "k_crit_interval": plain(estimates.k_crit.interval),
            **self._answer(),
            "group_size_at_estimates": self.sizes.group_size,
            "looks": list(self.looks) or None,
            "better_budget": None if better is None or better[0] == self.budget else list(better),
            "on_policy_z": None if pool.on_policy_z is None else finite(pool.on_policy_z),
            "critic_cost": self.critic_cost,
            "dominant": None if self.dominant is None else self.dominant.to_dict(),
            **estimates.to_dict(),
            "pool": {
                "prompts": pool.distinct,
                "groups": pool.size,
                "rollouts": pool.rollouts,
                "dtype": pool.config.get("dtype"),
                "autocast": pool.config.get("autocast_bf16"),
                "metric": pool.metric,
                "summary": plain(summary(pool)),
            },
            "taken_as_zero": list(estimates.clipped),
            **({} if self.adaptive is None else {"adaptive": self.adaptive.to_dict()}),
            **({} if self.choice is None else {"choice": self.choice.to_dict()}),
            **({} if self.metrics is None else self.metrics.to_dict()),
            **({} if self.drawing is None else {"drawing": self.drawing.to_dict()}),
            **({} if self.memory is None else {"memory": self.memory.to_dict()}),
        }

    def __str__(self) -> str:
        from ..pool.estimates import summary

        estimates, pool, size = self.constants, self.pool, self.group_size
        low, high = estimates.g_star.interval
        lines = [facts(pool, summary(pool))]
        if "c1" in estimates.clipped:
            lines.append(
                "The estimate of c1, the spread of prompts' gradients, is below 0 and taken as 0 in the "
                f"table. This pool only shows that G* is at least {readable(low)}.\n"
            )
        lines.append(str(replace(self.sizes, advised=self._advised())))
        if math.isfinite(crit := estimates.k_crit.value):
            lines.append(
                f"Critical budget, where the least error is ‖g‖²: {readable(crit)} outputs per step "
                f"(95%: {ends(*estimates.k_crit.interval)})."
            )
        if self.metrics is not None:
            lines.append(f"\n{self.metrics}\n")
        if self.better_budget is not None:
            lines.append(
                f"95% interval of the best real G: {ends(low, high)} ({pool.distinct} prompts)."
            )
        if self.dominant is not None:
            lines.append(str(self.dominant))
        if estimates.unbounded:
            lines.append(
                "The spread of prompts' gradients, c1, is not distinguishable from 0 in this pool: a larger "
                "group may be as good; score more prompts to know."
            )
        lines += reasons(estimates.not_known)
        (batch,) = (row.batch_size for row in self.sizes.table if row.group_size == size)
        lines.append(
            f"In TRL: num_generations = {size}, {batch * size} completions per step (per-device "
            f"batch x processes x steps per generation)."
        )
        lines.append(self._critic_sentence())
        if self.looks and not self.looks[-1]["settled"]:
            lines.append(
                "All prompts are used, but the advice is still too uncertain: give more prompts."
            )
        parts = self.choice, self.memory, self.adaptive, self.drawing
        lines += [f"\n{part}" for part in parts if part is not None]
        return "\n".join(lines)

    def _advised(self) -> str:
        """The advice in words."""
        near, best, text = self.better_budget, self.sizes.group_size, f"Use {self.decision}"
        if near is not None and near[0] != self.budget:
            text = (
                "No group size that fits this budget is within 5% of the least error: take a budget of "
                f"{near[0]} with G = {near[1]}, or here {self.decision}"
            )
        if best != self.group_size:
            text += f" G = {best}, the best for the estimates, risks more."
        if self.settled_by is not None:
            text += f"  About {self.settled_by} prompts in total would decide it."
        return text

    def _critic_sentence(self) -> str:
        cost, low, high = (self.critic_cost[name] for name in ("mse_over_oracle", "low", "high"))
        what = f"with G = {self.group_size}"
        if cost is None:
            return f"This pool does not show the cost of not knowing the value {what}."
        bounded = high is not None and low is not None and low > 0
        ends = f"95%: {low - 1:.1%} to {high - 1:.1%}" if bounded else "its error is not known"
        return (
            f"Not knowing the value adds {cost - 1:.1%} to the error at one prompt {what} ({ends})."
        )


def advise_pool(
    pool: ScoredPool | str | Path,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    off_policy: bool = False,
    adaptive: bool = False,
    stage_cost: float = 0.0,
    draw: bool = False,
    estimator: Any = None,
    remember: int | None = None,
) -> PoolAdvice:
    """The advice of a scored pool on the group size, with its uncertainty.

    Arguments:
        pool: a scored pool, or its file.
        budget, prompt_cost, output_cost, population: as for :func:`~ustat_pg.predictions.group_size_advice`.
        off_policy: whether to accept rollouts that another policy seems to have drawn.
        adaptive: whether to compare groups in two stages; rewards 0 and 1.
        stage_cost: cost of a second stage, in outputs.
        draw: whether to compare a law of prompts by pass rates with the data's; rewards 0 and 1.
        estimator: the estimator in use, as a trainer's options; other estimators and their group sizes are
            compared with it.
        remember: n, the earlier rewards of each prompt in the baseline.

    Raises:
        InputError: see that function; also if another policy drew the rollouts, or no group has a signal.
    """
    if not isinstance(pool, ScoredPool):
        pool = ScoredPool.load(pool)
    refuse_another_policy(pool, off_policy)
    advice = decide(
        pool, budget, prompt_cost=prompt_cost, output_cost=output_cost, population=population
    )
    return _completed(advice, stage_cost if adaptive else None, estimator, draw, remember)


def advise_model(
    source: ModelPool,
    budget: float,
    *,
    until: str | float | None = None,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    adaptive: bool = False,
    stage_cost: float = 0.0,
    draw: bool = False,
    estimator: Any = None,
    remember: int | None = None,
    progress: Progress | None = None,
) -> PoolAdvice:
    """The advice on the group size for a language model and its prompts; it samples and scores a pool first.

    Arguments:
        source: the model, the prompts, and how rollouts are sampled or read.
        budget, prompt_cost, output_cost, population: as for :func:`~ustat_pg.predictions.group_size_advice`.
        until: prompts are added until the error at the advised G exceeds the least error by at most this
            share, or until all are used ("all") (default: 0.05; "all" if ``limit`` or ``rollouts`` fix the
            number).
        adaptive, stage_cost, draw, estimator, remember: as for :func:`advise_pool`.
        progress: called after each prompt.

    Raises:
        InputError: see these functions.
    """
    # A question that no pool could answer is an error before sampling starts.
    number("cost of a stage", stage_cost, minimum=0.0)
    group_size_advice(
        MseConstants(1.0, 1.0, 1.0),
        budget,
        prompt_cost=prompt_cost,
        output_cost=output_cost,
        population=population,
    )
    if source.rollouts is None:
        _refuse_unanswerable(estimator, draw, np.arange(2.0 * source.samples).reshape(2, -1) % 2)
    if until is None and source.limit is None and source.rollouts is None:
        until = _ENOUGH
    share = None if until is None or until == "all" else float(until)
    looks: list[dict[str, Any]] = []
    _announce(source, share)
    known = partial(_refuse_unanswerable, estimator, draw)
    with closing(source.pools(progress, looks=share is not None, known=known)) as pools:
        for grown in pools:
            advice = decide(
                grown,
                budget,
                prompt_cost=prompt_cost,
                output_cost=output_cost,
                population=population,
                **({} if share is None else {"share": share}),
            )
            if share is None:
                break
            settled = advice is not None and advice.decision.settles(share)
            record = {} if advice is None else advice._answer()
            looks.append({"prompts": grown.distinct, **record, "settled": settled})
            so = "going on" if len(looks) < grown.looks else "there are no more"
            _LOG.info(
                "look %d of %d: %d prompts, %s: %s",
                *(len(looks), grown.looks, grown.distinct),
                *(
                    advice.line() if advice else "no group has a signal",
                    "enough" if settled else so,
                ),
            )
            if settled:
                break
    advice = _completed(advice, stage_cost if adaptive else None, estimator, draw, remember)
    return replace(advice, looks=tuple(looks))


def _refuse_unanswerable(
    estimator: Any, draw: bool, rewards: NDArray[np.float64], prompts: list[int] | None = None
) -> None:
    """Raise an error now if no scores of rollouts with these rewards, (P, N), could answer the question."""
    # A pool with made-up scores goes through the real checks, so both raise the same errors.
    scores = np.random.default_rng(0).normal(size=(*rewards.shape, 1))
    pool = ScoredPool.from_scores(rewards, scores)
    pool = replace(pool, clusters=None if prompts is None else np.array(prompts))
    gradients(pool)
    if not np.ptp(rewards, axis=1).any():
        raise _no_signal()
    if draw:
        from ..pool.drawing import halves_of

        halves_of(rewards)
    if estimator is None:
        return
    meaning = in_use(estimator)
    assert meaning.estimator is not None
    assert meaning.group_size is not None
    group_moments(pool, prompt_moments(pool), [meaning.estimator], [meaning.group_size])
    if drawn := [name for names in meaning.drawn().values() for name in names]:
        _LOG.warning(
            "warning: %s: the scores are for the model without this option, so rollouts drawn with it belong "
            "to another policy; the on-policy test rejects rollouts that are far from the model's",
            ", ".join(drawn),
        )


def _no_signal() -> InputError:
    return InputError(
        "all rewards of each prompt are equal: no group of this pool has a signal, so it gives "
        "no advice on the group size; take other prompts or more rollouts"
    )


def _announce(source: ModelPool, until: float | None) -> None:
    """Log the planned work before it starts."""
    _, task = source.parts
    if source.rollouts is not None or task is None or until is None:
        return
    if len(sizes := look_sizes(len(task.prompts))) > 1:
        _LOG.info(
            "%d rollouts per prompt, with at most %d tokens each; prompts: %s, until enough is known",
            *(source.samples, task.max_new_tokens, ", ".join(map(str, sizes))),
        )


def decide(
    pool: ScoredPool,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    share: float = _ENOUGH,
) -> PoolAdvice | None:
    """The advice of a pool of at least two prompts; None if no group has a signal.

    It is decided if its error exceeds the least error by at most ``share``.
    """
    estimates = constants(pool, population)
    if not np.ptp(pool.rewards, axis=1).any():
        return None
    values = estimates.predictions()
    sizes = group_size_advice(
        values,
        budget,
        prompt_cost=prompt_cost,
        output_cost=output_cost,
        population=population,
        frac_reward_zero_std=lambda size: finite(
            frac_reward_zero_std(pool, [size])["frac_reward_zero_std"].iloc[0]
        ),
        wrong_norms=_wrong_norms(pool),
    )
    found = decision(estimates, sizes, population)
    better = None
    if output_cost is None and not prompt_cost and population is None:
        # A value without a bounded interval is not a reason for another budget.
        better = (
            near_budget(values, int(budget)) if found.known else (int(budget), found.group_size)
        )
    more = None
    if not found.settles(share):
        more = prompts_to_settle(estimates, pool.distinct, sizes, share, population)
    return PoolAdvice(
        *(sizes, pool, estimates, found, more, budget, better), metrics=metrics(pool, population)
    )


def _wrong_norms(pool: ScoredPool) -> tuple[float, float] | None:
    """Estimates of E[‖s‖² (1-z)] and E[(1-V) tr F]; None if rewards are not 0 and 1."""
    if not np.isin(pool.rewards, (0.0, 1.0)).all():
        return None
    known = prompt_moments(pool).by_prompt(pool)
    single = known.fisher_trace - known.norm_reward
    # V tr F = E[‖s‖² z] - E[‖s‖² a].
    return float(single.mean()), float((single + known.norm_advantage).mean())


def _completed(
    advice: PoolAdvice | None,
    stage_cost: float | None,
    estimator: Any,
    draw: bool,
    remember: int | None,
) -> PoolAdvice:
    """The advice with what else is requested: two stages, a law of prompts, a memory, a trainer's options."""
    if advice is None:
        raise _no_signal()
    pool = advice.pool
    if stage_cost is not None:
        from ..pool.plans import adaptive_pool_advice

        advice = replace(advice, adaptive=adaptive_pool_advice(pool, stage_cost=stage_cost))
    if draw:
        from ..pool.drawing import pool_drawing_advice

        advice = replace(advice, drawing=pool_drawing_advice(pool, advice.group_size))
    if remember is not None:
        from ..pool.memory import memory_pool_advice

        advice = replace(advice, memory=memory_pool_advice(pool, remember, int(advice.budget)))
    if estimator is None:
        return advice
    from ..pool.estimates import compared, direction

    sizes = [row.group_size for row in advice.sizes.table if row.group_size <= pool.rollouts]
    choice = choose(estimator, advice.budget, sizes, partial(compared, pool))
    current = choice.candidates[0]
    if not current.unbiased:
        bias = direction(pool, current.estimator, current.group_size)
        choice = replace(choice, direction=bias)
    return replace(advice, choice=choice)
