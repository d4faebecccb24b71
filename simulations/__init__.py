"""The experiments: one file for each result, its design as data, its checks and its rivals.

A file ``<stem>.py`` here asks its result of softmax bandits (``claim``) and of policies over tokens
(``on_networks``); one of ``language_models`` asks those. ``points`` has points and figures of a result
on bandits where they are many.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ustat_pg.paper import RESULTS

if TYPE_CHECKING:
    from ustat_pg.experiment import Claim
    from ustat_pg.experiment.curves import Point
    from ustat_pg.experiment.figure import Figure

    from .problems import Suite

__all__ = [
    "KINDS",
    "NETWORKS",
    "ON_LANGUAGE_MODELS",
    "ON_NETWORKS",
    "ON_RUNS",
    "STEMS",
    "Suite",
    "claim",
    "curves",
    "experiment",
    "figures_of",
]

ON_LANGUAGE_MODELS = ("gradient_mse_lm", "group_size_lm")
"""The results on language models, which have a kind of their own."""

STEMS = tuple(stem for stem in RESULTS if stem not in ON_LANGUAGE_MODELS)
"""The other results that have an experiment, in the paper's order."""

ON_RUNS = ("suboptimality", "limit_law", "oracle_policy", "optimal_policy")
"""The results on whole training runs alone, whose problems have an interior optimum."""

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


NETWORKS = ("tokens", "transformer")
"""The kinds of problem whose policies are networks over tokens."""


def experiment(stem: str, suite: Suite) -> ModuleType:
    """The module with a result's experiment on the suite's kind of problem."""
    folder = ".language_models" if suite.on == "language-model" else ""
    return import_module(f"{__name__}{folder}.{stem}")


def claim(stem: str, suite: Suite, *, regimes: bool = True) -> Claim:
    """The claim of that stem, designed on the suite's problems.

    Arguments:
        stem: the result's.
        suite: the problems.
        regimes: whether the checks on regimes are among its own; no draw misleads these.
    """
    module = experiment(stem, suite)
    # Without a function of its own for networks a claim asks the same of them.
    on_networks = getattr(module, "on_networks", module.claim)
    built: Claim = (on_networks if suite.on in NETWORKS else module.claim)(suite)
    if suite.on == "bandit" and regimes:
        from .regimes import checks

        built = replace(built, checks=(*built.checks, *checks(stem, suite)))
    if suite.size != "smoke" or suite.on != "bandit":
        return built
    # Where no rival binds, a smoke run is content with intervals half again as wide.
    return replace(built, checks=tuple(check.coarser(1.5) for check in built.checks))


def curves(stem: str, suite: Suite) -> tuple[Point, ...]:
    """The points that the result's figures draw, on the suite's problems."""
    module = experiment(stem, suite)
    if suite.on in NETWORKS:
        draw = getattr(module, "curves_on_networks", None)
        return tuple(draw(suite)) if draw else ()
    module = module if hasattr(module, "curves") else _beside(stem)
    built: tuple[Point, ...] = tuple(module.curves(suite))
    return built


def figures_of(stem: str) -> tuple[Figure, ...]:
    """The figures that the result declares."""
    module = import_module(f"{__name__}.{stem}")
    declared: tuple[Figure, ...] = getattr(
        module if hasattr(module, "curves") else _beside(stem), "FIGURES", ()
    )
    return declared


def _beside(stem: str) -> ModuleType:
    """The module with a result's points and figures, where its own would be long."""
    return import_module(f"{__name__}.points.{stem}")


def __getattr__(name: str) -> Any:
    # Problems load NumPy and SciPy, which a usage message should not wait for.
    if name == "Suite":
        return import_module(".problems", __name__).Suite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
