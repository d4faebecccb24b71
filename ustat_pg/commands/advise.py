"""The commands ``ustat-pg advise``, for group sizes, and ``ustat-pg rewards``, for groups without signal."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..advice import ProblemAdvice, advise
from .following import follow
from .plots import refuse_plot, save

if TYPE_CHECKING:
    from ..llm.advice.advise import PoolAdvice


def run(options: argparse.Namespace) -> None:
    """Print the advice on a problem, a scored pool or a model, or draw it."""
    given = dict(vars(options))
    plot, form = given.pop("plot", None), given.pop("form", None)
    del given["command"]
    if plot is not None:
        # This check comes before any sampling.
        refuse_plot(plot)
    advice = _advice(given)
    if plot is not None:
        save(advice.plot(), plot)
    if form == "csv":
        print(advice.to_frame().to_csv(index=False), end="")
    else:
        print(json.dumps(advice.to_dict(), allow_nan=False) if form == "json" else advice)


def _advice(given: dict[str, Any]) -> ProblemAdvice | PoolAdvice:
    if "problem" in given:
        return advise(given.pop("problem"), **given)
    from ..llm.advice.model_pool import ModelPool
    from ..llm.pool.scored import ScoredPool
    from .language_models import shown_progress

    if "scored" in given:
        pool = ScoredPool.load(given.pop("scored"))
        return advise(pool.in_metric(given.pop("metric", pool.metric)), **given)
    names = [entry.name for entry in fields(ModelPool) if entry.name in given]
    source = ModelPool(**{name: given.pop(name) for name in names})
    with shown_progress() as progress:
        return advise(source, **given, progress=progress)


def rewards(options: argparse.Namespace) -> None:
    """Print the pass rates and the groups without signal in a file of rewards."""
    from ..llm.rollouts.rewards import summarise_rewards

    def show() -> None:
        summary = summarise_rewards(
            options.file, options.group_sizes, group_by=options.group_by, reward=options.reward
        )
        if options.csv:
            print(summary.to_frame().to_csv(index=False), end="", flush=True)
        else:
            text = json.dumps(summary.to_dict(), allow_nan=False) if options.json else summary
            print(text, flush=True)

    if options.follow:
        follow(options.file, show)
    else:
        show()
