"""The experiments: one file for each result, with its design as data, its checks and its rivals.

A file ``<stem>.py`` has the ``RIVALS`` of a result and its checks on softmax bandits (``checks``), and if
they differ, on policies over tokens (``on_networks``). Files in ``language_models`` have checks on language
models. The file with the same name in ``figures`` has the ``FIGURES``, drawn from the points of ``curves``.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .paper import (
    KINDS,
    NETWORKS,
    ON_A_MODEL,
    ON_LANGUAGE_MODELS,
    ON_NETWORKS,
    ON_RUNS,
    RESULTS,
    STEMS,
)

if TYPE_CHECKING:
    from .evidence import Claim
    from .evidence.curves import Point
    from .evidence.figure import Figure
    from .problems import Suite

__all__ = [
    "KINDS",
    "NETWORKS",
    "ON_A_MODEL",
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


def experiment(stem: str, suite: Suite) -> ModuleType:
    """The module with a result's experiment on the suite's kind of problem."""
    if suite.model is not None:
        return import_module(".language_models.real", __name__)
    folder = ".language_models" if suite.on == "language-model" else ""
    return import_module(f"{__name__}{folder}.{stem}")


def claim(stem: str, suite: Suite) -> Claim:
    """The claim of that stem, designed on the suite's problems."""
    from .evidence import Claim

    module = experiment(stem, suite)
    checks, rivals = module.checks, getattr(module, "RIVALS", ())
    if suite.on in NETWORKS:
        # Networks get the same checks unless a claim gives others.
        checks = getattr(module, "on_networks", checks)
        rivals = getattr(module, "RIVALS_ON_NETWORKS", rivals)
    built = list(checks(suite))
    if suite.model is not None:
        # The model determines which wrong formulas are far from the truth.
        asked = (check.statement.rivals for check in built)
        rivals = tuple(dict.fromkeys(chain.from_iterable(asked)))
    if suite.on == "bandit" and suite.size == "smoke":
        # If no rival limits the interval, a smoke run allows intervals 1.5 times as wide.
        built = [check.coarser(1.5) for check in built]
    # Language models cannot be enumerated.
    simulated = rivals if suite.on == "language-model" else ()
    family = len(RESULTS) if suite.model is None else 1
    return Claim(stem, rivals, tuple(built), simulated, family)


def curves(stem: str, suite: Suite) -> tuple[Point, ...]:
    """The points of the result's figures, on the suite's problems."""
    if suite.on == "language-model":
        draw = experiment(stem, suite).curves
    else:
        name = "curves_on_networks" if suite.on in NETWORKS else "curves"
        draw = getattr(import_module(f"{__name__}.figures.{stem}"), name, lambda suite: ())
    return tuple(draw(suite))


def figures_of(stem: str) -> tuple[Figure, ...]:
    """The figures that a result declares."""
    module = import_module(f"{__name__}.figures.{stem}")
    declared: tuple[Figure, ...] = getattr(module, "FIGURES", ())
    return declared


def __getattr__(name: str) -> Any:
    # Problems load NumPy and SciPy, and a usage message should not wait for them.
    if name == "Suite":
        return import_module(".problems", __name__).Suite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
