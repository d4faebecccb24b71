"""Engines of the experiments: whole training runs (:class:`Training`), one step along a gradient
(:class:`OneStep`), a minibatch of practical losses (:class:`PracticalCell`), a batch that is used several
times (:class:`ReusedBatch`), groups where some outputs do not count, and ``autograd``, which differentiates
networks.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ustat_pg.engines.gradients.cell import OTHERS

from .graded import GradedCell
from .memory import MemoryCell, MemoryTraining
from .one_step import GapAfterStep, OneStep
from .practical import PracticalCell, PracticalError, RatioBias, Rule, TargetBias
from .prompts import NormalisedCell, ScreenedCell
from .reuse import ReusedBatch, StepBias, StepSlope, SumNoise
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
    "GradedCell",
    "MemoryCell",
    "MemoryTraining",
    "NormalisedCell",
    "OneRun",
    "OneStep",
    "PracticalCell",
    "PracticalError",
    "Product",
    "RatioBias",
    "ReusedBatch",
    "Rule",
    "ScreenedCell",
    "SizedCell",
    "StepBias",
    "StepSlope",
    "SumNoise",
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
