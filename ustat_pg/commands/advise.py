"""The commands ``ustat-pg advise``, for group sizes, and ``ustat-pg rewards``, for groups without signal."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..advice import ProblemAdvice, advise
from ..files.whole import whole_file
from ..validation import InputError
from .following import follow
from .plots import refuse_plot, save

if TYPE_CHECKING:
    from ..llm.advice.advise import PoolAdvice
    from ..llm.rollouts.rewards import RewardSummary
    from ..llm.rollouts.two_logs import RewardDifference
    from ..predictions import DrawingAdvice


def run(options: argparse.Namespace) -> None:
    """Print the advice on a problem, a scored pool or a model, or draw it."""
    given = dict(vars(options))
    plot, form, law = (given.pop(name, None) for name in ("plot", "form", "law"))
    del given["command"]
    _refuse_law(law, given.get("draw"))
    if plot is not None:
        # This check comes before any sampling.
        refuse_plot(plot)
    advice = _advice(given)
    if plot is not None:
        save(advice.plot(), plot)
    if law is not None:
        assert advice.drawing is not None
        _write(advice.drawing, law)
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


def _refuse_law(path: Path | None, draw: bool | None) -> None:
    """Raise an error if no law can be written to a file."""
    if path is None:
        return
    if not draw:
        raise InputError("--law is the law of --draw: write --draw too, or leave it out")
    if path.is_dir():
        raise InputError(f"--law {path} is a folder: name a file")
    if not path.parent.is_dir():
        raise InputError(f"--law {path}: there is no folder {path.parent}")


def _write(drawing: DrawingAdvice, path: Path) -> None:
    with whole_file(path) as file:
        file.write(drawing.to_frame().to_csv(index=False).encode())


def rewards(options: argparse.Namespace) -> None:
    """Print the pass rates and the groups without signal in a file of rewards, or its difference from
    another.
    """
    from ..llm.rollouts.rewards import summarise_rewards
    from ..llm.rollouts.two_logs import compare_rewards

    law, columns = options.law, {"group_by": options.group_by, "reward": options.reward}
    _refuse_law(law, options.draw)
    if options.against is not None:
        _refuse_unread(options, "--against compares two logs", "group_sizes", "epsilon", "draw")

    def show() -> None:
        if options.against is not None:
            return _print(compare_rewards(options.file, options.against, **columns), options)
        sizes, epsilon = options.group_sizes, options.epsilon
        summary = summarise_rewards(options.file, sizes, epsilon=epsilon, **columns)
        drawing = summary.drawing() if options.draw else None
        if law is not None and drawing is not None:
            _write(drawing, law)
        return _print(summary, options, drawing)

    if options.follow:
        follow(options.file, show)
    else:
        show()


def _print(
    found: RewardSummary | RewardDifference,
    options: argparse.Namespace,
    drawing: DrawingAdvice | None = None,
) -> None:
    """Print a record, and a law of prompts, in the form that is asked for."""
    if options.csv:
        print(found.to_frame().to_csv(index=False), end="", flush=True)
    elif options.json:
        record = {} if drawing is None else {"drawing": drawing.to_dict()}
        print(json.dumps(found.to_dict() | record, allow_nan=False), flush=True)
    else:
        print(found, *([] if drawing is None else [f"\n{drawing}"]), sep="\n", flush=True)


def _refuse_unread(options: argparse.Namespace, why: str, *names: str) -> None:
    given = [name for name in names if getattr(options, name) not in (None, False)]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{why}: leave out {flags}, which would be ignored")
