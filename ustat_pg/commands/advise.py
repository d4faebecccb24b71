"""``ustat-pg advise`` and ``ustat-pg rewards``: group sizes of problems and models, groups without signal."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue.choice import Choice, Ratio, choose
from ..moments import Moments
from ..predictions import (
    AdaptiveAdvice,
    GroupSizeAdvice,
    MseConstants,
    adaptive_advice,
    critical_budget,
    gradient_mse,
    group_size_advice,
    mse_constants,
    near_budget,
)
from ..predictions.advice import OfSizes
from ..problems import SoftmaxBandit, load_problem
from ..validation import InputError, number
from .plots import refuse_plot, save
from .predict import centred

if TYPE_CHECKING:
    from ..llm.advise import PoolAdvice


@dataclass(frozen=True)
class ProblemAdvice(OfSizes):
    """The advice of a problem whose moments are known.

    Arguments:
        sizes: the table of group sizes, and the best.
        constants: c1, c2 and c3.
        gradient_sq: ‖∇J‖².
        k_crit: the budget at which the least error is that; None where the gradient is 0.
        adaptive: groups in two stages beside fixed ones, where that is asked.
        choice: group size and baseline together, beside a trainer's options, where these are named.
    """

    constants: MseConstants
    gradient_sq: float
    k_crit: float | None
    adaptive: AdaptiveAdvice | None = None
    choice: Choice | None = None

    @property
    def group_size(self) -> int:
        """The feasible group size of least error."""
        return self.sizes.group_size

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            **self.sizes.to_dict(),
            **{name: getattr(self.constants, name) for name in ("c1", "c2", "c3")},
            "gradient_sq": self.gradient_sq,
            "k_crit": self.k_crit,
            **({} if self.adaptive is None else {"adaptive": self.adaptive.to_dict()}),
            **({} if self.choice is None else {"as": self.choice.to_dict()}),
        }

    def __str__(self) -> str:
        parts = (self.sizes, self.choice, self.adaptive)
        return "\n\n".join(str(part) for part in parts if part is not None)


def advise_problem(
    problem: SoftmaxBandit | str | Path,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    adaptive: bool = False,
    stage_cost: float = 0.0,
    spec: Any = None,
) -> ProblemAdvice:
    """Which group size gives grpo's gradient the least error on a problem.

    Arguments:
        problem: a problem, its file, or ustat:NAME.
        budget, prompt_cost, output_cost, population: those of
            :func:`~ustat_pg.predictions.group_size_advice`.
        adaptive: whether to compare groups in two stages; rewards 0 and 1.
        stage_cost: what a second stage costs, in outputs.
        spec: a trainer's options in use: group size and baseline are chosen together beside them; rewards 0
            and 1.

    Raises:
        InputError: as that function says, a file that is no problem, or options without a closed form.

    >>> found = advise_problem("ustat:uneven", 64)
    >>> found.group_size, round(found.k_crit, 1)
    (2, 68.7)
    """
    number("cost of a stage", stage_cost, minimum=0.0)
    if not isinstance(problem, SoftmaxBandit):
        problem = load_problem(problem)
    moments = problem.moments()
    known, signal = mse_constants(moments), moments.mean_gradient_sq
    advice = group_size_advice(
        problem,
        budget,
        prompt_cost=prompt_cost,
        output_cost=output_cost,
        population=population,
    )
    if not prompt_cost and output_cost is None and population is None:
        advice = replace(advice, better_budget=near_budget(known, int(budget)))
    return ProblemAdvice(
        advice,
        known,
        signal,
        critical_budget(known, signal) if signal > 0 else None,
        adaptive_advice(moments, stage_cost=stage_cost) if adaptive else None,
        None if spec is None else _choice(spec, budget, advice, moments),
    )


def _choice(spec: Any, budget: float, advice: GroupSizeAdvice, moments: Moments) -> Choice:
    def measure(named: list[tuple[str, int]]) -> list[Ratio]:
        ratios: list[float] = []
        for name, size in named:
            try:
                ratio = gradient_mse(moments, centred(name, moments), size).noise_to_signal
            except InputError:
                # What is in use must be known; what is not is no rival.
                if not ratios:
                    raise
                ratio = None
            ratios.append(float("nan") if ratio is None else ratio * size)
        over = [ratio / ratios[0] for ratio in ratios]
        return [(ratio, one, one, one) for ratio, one in zip(ratios, over, strict=True)]

    return choose(spec, budget, [row.group_size for row in advice.table], measure)


def run(options: argparse.Namespace) -> None:
    """Print the advice on a problem, a scored pool or a model, or draw it."""
    given = dict(vars(options))
    plot, form = given.pop("plot", None), given.pop("form", None)
    del given["command"]
    if plot is not None:
        # Before anything is sampled.
        refuse_plot(plot)
    advice = _advice(given)
    if plot is not None:
        save(advice.plot(), plot)
    if form == "csv":
        print(advice.to_frame().to_csv(index=False), end="")
    else:
        print(json.dumps(advice.to_dict(), allow_nan=False) if form == "json" else advice)


def _advice(given: dict[str, Any]) -> ProblemAdvice | PoolAdvice:
    if "stage_cost" in given and "adaptive" not in given:
        raise InputError(
            "--stage-cost is of groups in two stages: write --adaptive too, or leave it out"
        )
    if "problem" in given:
        return advise_problem(**given)
    from ..llm.advise import advise_model, advise_pool
    from .language_models import shown_progress

    with shown_progress() as progress:
        if "scored" in given:
            return advise_pool(given.pop("scored"), **given)
        return advise_model(**given, progress=progress)


def rewards(options: argparse.Namespace) -> None:
    """Print pass rates, and groups without signal, of a file of rewards."""
    from ..llm.rewards import summarise_rewards

    summary = summarise_rewards(
        options.file, options.group_sizes, group_by=options.group_by, reward=options.reward
    )
    if options.csv:
        print(summary.to_frame().to_csv(index=False), end="")
    else:
        print(json.dumps(summary.to_dict(), allow_nan=False) if options.json else summary)
