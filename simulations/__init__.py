"""The experiments: one file for each result, its design as data, its checks and its rivals.

A file ``<stem>.py`` here asks its result of softmax bandits. ``networks`` and ``language_models`` have
the files that ask otherwise of these, and ``stand_ins`` those for any problems in the bandits' place.
``points`` has what figures draw of a result where that is much.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ustat_pg.paper import RESULTS

if TYPE_CHECKING:
    from ustat_pg.experiment import Claim
    from ustat_pg.experiment.curves import Point

    from .problems import Suite

__all__ = [
    "KINDS",
    "ON_LANGUAGE_MODELS",
    "ON_NETWORKS",
    "ON_RUNS",
    "STEMS",
    "Suite",
    "claim",
    "curves",
    "experiment",
]

ON_LANGUAGE_MODELS = ("gradient_mse_lm", "group_size_lm")
"""The results on language models, which have a kind of their own."""

STEMS = tuple(stem for stem in RESULTS if stem not in ON_LANGUAGE_MODELS)
"""The other results that have an experiment, in the paper's order."""

ON_RUNS = ("suboptimality", "limit_law", "oracle_policy", "optimal_policy")
"""The results on whole training runs alone: their problems have an interior optimum, so that one of the
user's own, which need not have one, does not take their place."""

KINDS = ("bandit", "tokens", "transformer", "language-model")
"""The kinds of problem: softmax bandits; token problems under a prefix softmax; the same under a
transformer; the language models that ship with the library.
"""

ON_NETWORKS = (
    "ustatistic",
    "mse",
    "minibatch",
    "oracle",
    "optimality",
    "suboptimality",
    "group_size",
    "normalised",
    "practical_mse",
    "arcsine",
    "count_advantages",
    "best_baseline",
)
"""The results that are asked of tokens and transformers too; the others need an interior optimum."""


def _first_of(*names: str) -> ModuleType:
    """The first of some modules of this package that there is."""
    whole = [f"{__name__}.{name}" for name in names]
    return import_module(next((name for name in whole if find_spec(name)), whole[-1]))


def experiment(stem: str, suite: Suite) -> ModuleType:
    """The module with a result's experiment on the suite's kind of problem.

    A kind of problem is a folder of experiments; what a folder lacks is asked as it is of bandits.
    """
    return _first_of(*(f"{folder}.{stem}" for folder in suite.kind.folders), stem)


def claim(stem: str, suite: Suite) -> Claim:
    """The claim of that stem, designed on the suite's problems."""
    module = experiment(stem, suite)
    built: Claim = module.claim(suite)
    if module.__name__ == f"{__name__}.{stem}" and suite.user is None and suite.on == "bandit":
        from .regimes import checks

        built = replace(built, checks=(*built.checks, *checks(stem, suite)))
    if suite.size != "smoke" or suite.on != "bandit":
        return built
    # Where no rival binds, a smoke run is content with intervals half again as wide.
    wider = (replace(check, statement=check.statement.coarser(1.5)) for check in built.checks)
    return replace(built, checks=tuple(wider))


def curves(stem: str, suite: Suite) -> tuple[Point, ...]:
    """The points that the result's figures draw, on the suite's problems."""
    module = experiment(stem, suite)
    if module.__name__ == f"{__name__}.{stem}":
        # Beside the claim where they are many, in its file where they are few.
        module = _first_of(f"points.{stem}", stem)
    built: tuple[Point, ...] = tuple(module.curves(suite))
    return built


def __getattr__(name: str) -> Any:
    # Problems load NumPy and SciPy, which a usage message should not wait for.
    if name == "Suite":
        return import_module(".problems", __name__).Suite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
