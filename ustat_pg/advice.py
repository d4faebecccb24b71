"""Advice on the group size for a problem, a scored pool, or a language model to sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

from .catalogue.choice import Choice, Ratio, choose
from .moments.record import Moments, moments_of
from .predictions import (
    AdaptiveAdvice,
    DrawingAdvice,
    MemoryAdvice,
    MseConstants,
    adaptive_advice,
    critical_budget,
    drawing_advice,
    gradient_mse,
    group_size_advice,
    memory_group_size,
    mse_constants,
    near_budget,
)
from .predictions.advice import Advice
from .predictions.count_tables import centred
from .problems import load_problem
from .validation import InputError, argument, integer, number

if TYPE_CHECKING:
    from .llm.advice.advise import PoolAdvice
    from .llm.rollouts.stored import Progress

MOST_REMEMBERED = 10**9
"""The most earlier rewards of a prompt that advice takes."""


@dataclass(frozen=True)
class ProblemAdvice(Advice):
    """The advice for a problem with known moments.

    Arguments:
        sizes: the table of group sizes, and the best.
        constants: c1, c2 and c3.
        gradient_sq: ‖∇J‖².
        k_crit: budget at which the least error equals ‖∇J‖²; None if the gradient is 0.
        adaptive: comparison of two-stage groups with fixed ones, if requested.
        choice: comparison of estimators and group sizes with a trainer's options, if these are given.
        drawing: law of prompts and its saving at that group size, if requested.
        memory: the group size with a memory of earlier rewards, if requested.
    """

    constants: MseConstants
    gradient_sq: float
    k_crit: float | None
    adaptive: AdaptiveAdvice | None = None
    choice: Choice | None = None
    drawing: DrawingAdvice | None = None
    memory: MemoryAdvice | None = None

    @property
    def group_size(self) -> int:
        """The feasible group size with the least error."""
        return self.sizes.group_size

    def to_dict(self) -> dict[str, Any]:
        """The advice as a dict for JSON."""
        return {
            **self.sizes.to_dict(),
            **{name: getattr(self.constants, name) for name in ("c1", "c2", "c3")},
            "gradient_sq": self.gradient_sq,
            "k_crit": self.k_crit,
            **({} if self.adaptive is None else {"adaptive": self.adaptive.to_dict()}),
            **({} if self.choice is None else {"choice": self.choice.to_dict()}),
            **({} if self.drawing is None else {"drawing": self.drawing.to_dict()}),
            **({} if self.memory is None else {"memory": self.memory.to_dict()}),
        }

    def __str__(self) -> str:
        parts = (self.sizes, self.choice, self.memory, self.adaptive, self.drawing)
        return "\n\n".join(str(part) for part in parts if part is not None)


def advise(
    what: Any,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    adaptive: bool = False,
    stage_cost: float | None = None,
    draw: bool = False,
    estimator: Any = None,
    remember: int | None = None,
    off_policy: bool = False,
    until: str | float | None = None,
    progress: Progress | None = None,
) -> ProblemAdvice | PoolAdvice:
    """The advice on the group size that gives grpo's gradient the least error at a budget, with its
    uncertainty.

    Arguments:
        what: a problem, its moments, its file or named arrays, or ``ustat:NAME``; a
            :class:`~ustat_pg.llm.pool.scored.ScoredPool` or its file; or a
            :class:`~ustat_pg.llm.advice.model_pool.ModelPool`, a language model with prompts or rollouts,
            which is then sampled and scored. Rewards alone are not enough: ``ScoredPool.from_scores(rewards,
            scores)``.
        budget, prompt_cost, output_cost, population: as for :func:`~ustat_pg.predictions.group_size_advice`.
        adaptive: whether to compare groups in two stages; rewards 0 and 1.
        stage_cost: cost of a second stage, in outputs (default: 0).
        draw: whether to compare a law of prompts with the data's, at the advised group size; of a pool or a
            model by pass rates, with rewards 0 and 1 and at least eight rollouts per prompt.
        estimator: the estimator in use, as a trainer's options; others and their group sizes are compared
            with it; a problem then needs rewards 0 and 1.
        remember: n, the earlier rewards of each prompt in the baseline: the group size with them, and whether
            groups of one suffice (reward_memory); without costs and population.
        off_policy: for a pool, whether to accept rollouts that another policy seems to have drawn.
        until: for a model; prompts are added until the error at the advised G exceeds the least error by at
            most this share, or until all are used ("all") (default: 0.05; "all" if ``limit`` or ``rollouts``
            fix the number).
        progress: for a model; called after each prompt.

    Raises:
        InputError: ``what`` is none of these, or they or that function raise an error; an argument belongs to
            another of them; or options have no closed form.

    >>> found = advise("ustat:uneven", 64)
    >>> found.group_size, round(found.k_crit, 1)
    (2, 68.7)
    """
    if stage_cost is not None and not adaptive:
        raise InputError(
            f"{argument('stage_cost', 'N')} is for groups in two stages: write {argument('adaptive')} too, "
            "or leave it out"
        )
    known: dict[str, Any] = {
        "prompt_cost": prompt_cost,
        "output_cost": output_cost,
        "population": population,
        "adaptive": adaptive,
        "stage_cost": number("cost of a stage", stage_cost or 0.0, minimum=0.0),
        "draw": draw,
        "estimator": estimator,
        "remember": remember,
    }
    if remember is not None:
        # A mistake is an error before any sampling.
        integer("memory", remember, 1, MOST_REMEMBERED)
    if remember is not None and (prompt_cost or output_cost is not None or population is not None):
        raise InputError(
            f"{argument('remember', 'N')} is for a budget of outputs: leave out costs and the population"
        )
    apart = {"off_policy": off_policy or None, "until": until, "progress": progress}
    given: dict[str, Any] = {name: value for name, value in apart.items() if value is not None}

    def refuse(kind: str, *taken: str) -> None:
        if unread := [name for name in given if name not in taken]:
            raise InputError(f"advice of {kind} does not take {', '.join(unread)}: leave it out")

    if (isinstance(what, str | Path) and not _is_pool(what)) or isinstance(what, Mapping):
        what = load_problem(what)
    if hasattr(what, "moments") or isinstance(what, Moments):
        refuse("a problem")
        return _of_moments(what, budget, **known)
    from .llm.advice.advise import advise_model, advise_pool
    from .llm.advice.model_pool import ModelPool
    from .llm.pool.scored import ScoredPool

    if isinstance(what, ModelPool):
        refuse("a model", "until", "progress")
        return advise_model(what, budget, **known, **given)
    if isinstance(what, ScoredPool | str | Path):
        refuse("a scored pool", "off_policy")
        return advise_pool(what, budget, **known, **given)
    raise InputError(
        f"no advice for a {type(what).__name__}: give a problem, a ScoredPool or a ModelPool. Rewards alone "
        "do not determine a gradient's noise: use ScoredPool.from_scores(rewards, scores)"
    )


def _is_pool(source: str | Path) -> bool:
    """Whether a file contains a scored pool; files of problems have the same ending."""
    path = Path(source)
    if path.suffix != ".npz" or not path.is_file() or not is_zipfile(path):
        return False
    with ZipFile(path) as archive:
        return "rewards.npy" in archive.namelist()


def _of_moments(
    problem: Any,
    budget: float,
    *,
    adaptive: bool,
    stage_cost: float,
    draw: bool,
    estimator: Any,
    remember: int | None,
    **costs: Any,
) -> ProblemAdvice:
    moments = moments_of(problem)
    known, signal = mse_constants(moments), moments.mean_gradient_sq
    advice = group_size_advice(problem, budget, **costs)
    if not any(costs.values()):
        advice = replace(advice, better_budget=near_budget(known, int(budget)))
    sizes = [row.group_size for row in advice.table]
    return ProblemAdvice(
        advice,
        known,
        signal,
        critical_budget(known, signal) if signal > 0 else None,
        adaptive_advice(moments, stage_cost=stage_cost) if adaptive else None,
        None if estimator is None else _choice(estimator, budget, sizes, moments),
        drawing_advice(moments, advice.group_size) if draw else None,
        None if remember is None else memory_group_size(moments, remember, int(budget)),
    )


def _choice(estimator: Any, budget: float, sizes: list[int], moments: Moments) -> Choice:
    def measure(named: list[tuple[str, int]]) -> list[Ratio]:
        ratios: list[float] = []
        for name, size in named:
            try:
                ratio = gradient_mse(moments, centred(name, moments), size).noise_to_signal
            except InputError:
                # The noise of the options in use must be known; a candidate with unknown noise is not
                # compared.
                if not ratios:
                    raise
                ratio = None
            ratios.append(float("nan") if ratio is None else ratio * size)
        over = [ratio / ratios[0] for ratio in ratios]
        return [(ratio, one, one, one) for ratio, one in zip(ratios, over, strict=True)]

    return choose(estimator, budget, sizes, measure)
