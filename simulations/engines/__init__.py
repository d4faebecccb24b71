"""Engines of the experiments: whole training runs (:class:`Training`), one step along a gradient
(:class:`OneStep`), a minibatch of practical losses (:class:`PracticalCell`), groups where some outputs do not
count, and ``autograd``, which differentiates networks.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ustat_pg.engines.gradients.cell import OTHERS

from .memory import MemoryCell, MemoryTraining
from .one_step import GapAfterStep, OneStep
from .practical import PracticalCell, PracticalError, RatioBias, Rule, TargetBias
from .runs.cell import (
    Away,
    Binned,
    Coordinate,
    Cosine,
    Gap,
    GapTransform,
    OneRun,
    Product,
    Training,
)
from .runs.regions import Ball
from .runs.schedules import Constant, Decay
from .sized import SizedCell, SurvivorCell
from .tokens import TokenMeanCell

__all__ = [
    "ON_TORCH",
    "Away",
    "Ball",
    "Binned",
    "Constant",
    "Coordinate",
    "Cosine",
    "Decay",
    "Gap",
    "GapAfterStep",
    "GapTransform",
    "MemoryCell",
    "MemoryTraining",
    "OneRun",
    "OneStep",
    "PracticalCell",
    "PracticalError",
    "Product",
    "RatioBias",
    "Rule",
    "SizedCell",
    "SurvivorCell",
    "TargetBias",
    "TokenMeanCell",
    "Training",
]

ON_TORCH = ("autograd",)
"""The engines whose last digits depend on torch and on its device."""


def _autograd() -> ModuleType:
    return import_module(".autograd", __name__)


OTHERS["autograd"] = _autograd
