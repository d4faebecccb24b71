"""Cells of gradients at fixed parameters, and the quantities of their estimates.

A :class:`GradientCell` is a problem with a group size, a batch size and a design of prompts. Its
quantities name estimators. All estimators run on the same draws, so differences between them
are paired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ...problems import SoftmaxBandit, WeightedBandit
from ...rounding import DERIVED
from ...sampling.designs import require_design
from ...validation import InputError, integer, one_of
from ..base import ENGINES, Array, Cell, Draws, Estimator, MomentSums, Replications
from .bounds import largest_along, largest_norm, reward_rounding

BLOCK = 65_536
"""Replications in a block, which take some tenths of a second or more."""

DEVICE_OUTPUTS = 2**31
"""Outputs in a block on a device, which take some tenths of a second at most."""

OTHERS: dict[str, Callable[[], ModuleType]] = {}
"""Engines that do not come with the library, by name: each imports a module with ``measure``."""


def direction(problem: SoftmaxBandit, number: int) -> Array:
    """The unit vector with that number in parameter space, (d,); it depends only on the dimension."""
    vector = np.random.default_rng([problem.d, number]).normal(size=problem.d)
    return np.asarray(vector / np.linalg.norm(vector))


class _OfMinibatch(ABC):
    """A quantity measured on a minibatch."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The word for the quantity in :attr:`label`."""

    @property
    def label(self) -> str:
        """The quantity's name in blocks and stored results."""
        return f"{self.kind}[{','.join(estimator.label for estimator in self.estimators)}]"

    @property
    @abstractmethod
    def estimators(self) -> tuple[Estimator, ...]:
        """The estimators that the quantity reads."""

    @abstractmethod
    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        """The least and the greatest value on any minibatch, or looser bounds.

        A minibatch's gradient is a mean over prompts, so the bound for one prompt is also valid for it.
        """

    def rounding(self, problem: SoftmaxBandit) -> float:
        """The largest possible error of its enumerated mean.

        A reward minus a baseline has an error of a few bits of the reward; a squared error
        multiplies this by the rewards' spread.
        """
        low, high = problem.reward_range
        off, norm = reward_rounding(problem)
        return off * (high - low + off) * norm**2


@dataclass(frozen=True)
class _OfEstimator(_OfMinibatch):
    estimator: Estimator

    @property
    def estimators(self) -> tuple[Estimator, ...]:
        return (self.estimator,)


@dataclass(frozen=True)
class SquaredError(_OfEstimator):
    """‖ĝ - g‖², whose mean is the MSE."""

    kind = "mse"

    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        gradient_norm = float(np.linalg.norm(problem.gradient()))
        return 0.0, (largest_norm(problem, self.estimator, group_size) + gradient_norm) ** 2


@dataclass(frozen=True)
class Distance(_OfMinibatch):
    """‖ĝ₁ - ĝ₂‖² of two estimators on the same draws."""

    first: Estimator
    second: Estimator

    kind = "distance"

    @property
    def estimators(self) -> tuple[Estimator, ...]:
        return (self.first, self.second)

    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        return 0.0, sum(
            largest_norm(problem, estimator, group_size) for estimator in self.estimators
        ) ** 2


@dataclass(frozen=True)
class _Along(_OfEstimator):
    number: int = 0
    squared: ClassVar[str] = ""

    @property
    def kind(self) -> str:
        return f"{self.squared}projection{self.number}"

    def largest(self, problem: SoftmaxBandit, group_size: int) -> float:
        """The largest value of |⟨ĝ - g, u⟩|, or a looser bound."""
        return largest_along(problem, self.estimator, group_size, direction(problem, self.number))


@dataclass(frozen=True)
class Projection(_Along):
    """⟨ĝ - g, u⟩ along the unit vector :func:`~ustat_pg.engines.gradients.cell.direction` of a number; mean 0
    if the estimator is unbiased.
    """

    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        largest = self.largest(problem, group_size)
        return -largest, largest

    def rounding(self, problem: SoftmaxBandit) -> float:
        off, norm = reward_rounding(problem)
        return off * norm


@dataclass(frozen=True)
class SquaredProjection(_Along):
    """⟨ĝ - g, u⟩², whose mean is uᵀ E[(ĝ-g)(ĝ-g)ᵀ] u."""

    squared = "squared-"

    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        return 0.0, self.largest(problem, group_size) ** 2


@dataclass(frozen=True)
class Mixed(_OfMinibatch):
    """The share of groups whose rewards are not all equal. Dynamic sampling keeps these groups."""

    kind = label = "mixed"
    estimators = ()

    def range(self, problem: SoftmaxBandit, group_size: int) -> tuple[float, float]:
        return 0.0, 1.0

    def rounding(self, problem: SoftmaxBandit) -> float:
        return DERIVED


GradientQuantity = SquaredError | Distance | Projection | SquaredProjection | Mixed
"""Quantities of a minibatch."""


def mixed(draws: Draws) -> Array:
    """The share of a minibatch's groups whose rewards are not all equal, (n,)."""
    unequal = np.ptp(draws.rewards, axis=-1) > 0
    return np.asarray(unequal.mean(axis=-1))


def columns(
    quantities: Iterable[GradientQuantity],
    estimates: Mapping[Estimator, Any],
    target: Any,
    unequal: Any,
    unit: Callable[[int], Any],
) -> Iterator[Any]:
    """The values of each quantity in some minibatches, (n,), in NumPy or torch.

    Arguments:
        quantities: the requested ones.
        estimates: ĝ of each estimator, (n, d).
        target: g, (d,).
        unequal: the share of groups whose rewards are not all equal, (n,).
        unit: a function from a number to its unit vector, (d,).
    """
    for quantity in quantities:
        if isinstance(quantity, Mixed):
            yield unequal
        elif isinstance(quantity, Distance):
            yield ((estimates[quantity.first] - estimates[quantity.second]) ** 2).sum(-1)
        elif isinstance(quantity, SquaredError):
            yield ((estimates[quantity.estimator] - target) ** 2).sum(-1)
        else:
            along = (estimates[quantity.estimator] - target) @ unit(quantity.number)
            yield along if isinstance(quantity, Projection) else along**2


def estimators_of(quantities: Iterable[GradientQuantity]) -> list[Estimator]:
    """The estimators that the quantities name, each once, in order of appearance."""
    return list(
        dict.fromkeys(estimator for quantity in quantities for estimator in quantity.estimators)
    )


def memory_of(quantities: Iterable[GradientQuantity]) -> int:
    """The most earlier rewards of a prompt that an estimator of the quantities needs."""
    return max((estimator.memory for estimator in estimators_of(quantities)), default=0)


@dataclass(frozen=True)
class GradientCell(Cell):
    """A problem, a group size, a batch size, and how prompts are drawn.

    Arguments:
        problem: the training problem.
        group_size: G >= 1.
        batch_size: B >= 1.
        design: iid, fixed (each context once, in order) or without-replacement.
        device: the device of the autograd engine: cpu, cuda or cuda:N; cpu by default.

    Raises:
        InputError: a size that is not a positive whole number, an unknown design, or one that does
            not fit the problem.

    >>> from ustat_pg.problems import random_problem
    >>> cell, quantity = GradientCell(random_problem(0), 2), SquaredError(Estimator("grpo"))
    >>> cell.measure("cpu", [quantity], replications=100).n
    100
    """

    problem: SoftmaxBandit
    group_size: int
    batch_size: int = 1
    design: str = "iid"
    device: str | None = None

    steps = 1
    measures = (SquaredError, Distance, Projection, SquaredProjection, Mixed)

    def __post_init__(self) -> None:
        if not isinstance(self.problem, SoftmaxBandit):
            raise InputError(f"problem is {self.problem!r}: it must be a SoftmaxBandit")
        integer("group size", self.group_size)
        require_design(self.design, self.batch_size, self.problem.contexts, self.problem.uniform)

    @property
    def name(self) -> str:
        return f"{self.problem.digest}/G{self.group_size}/B{self.batch_size}/{self.design}"

    @property
    def before(self) -> SoftmaxBandit:
        """The problem from which earlier rewards are drawn, with the same outcomes in the same order."""
        return self.problem

    @property
    def block(self) -> int:
        return BLOCK

    @property
    def device_block(self) -> int:
        return max(BLOCK, DEVICE_OUTPUTS // self.outputs)

    def budget(self, replications: int) -> int:
        """The number itself, because budgets count replications of gradients."""
        return replications

    def engine(self, name: str) -> str:
        """The requested engine, but cpu instead of autograd for weighted scores, which are not gradients."""
        weighted = isinstance(self.problem, WeightedBandit)
        return super().engine("cpu" if weighted and name == "autograd" else name)

    @property
    def engines(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*ENGINES, *OTHERS)

    def on(self, device: str) -> GradientCell:
        return replace(self, device=device)

    def range(self, quantity: Any) -> tuple[float, float]:
        return quantity.range(self.problem, self.group_size)

    def rounding(self, quantity: Any) -> float:
        return float(quantity.rounding(self.problem))

    def require_quantity(self, quantity: Any) -> None:
        """Refuse unknown quantities, and leave-one-out in a group of one."""
        super().require_quantity(quantity)
        for estimator in quantity.estimators:
            estimator.require_group(self.group_size)

    def require_exact(self, quantities: Sequence[Any]) -> None:
        self.require_quantities(quantities)
        engine_of("exact").require(self, memory=memory_of(quantities))

    def effort(self, quantities: Sequence[Any]) -> float:
        memory = memory_of(quantities)
        return float(engine_of("exact").effort(self, len(quantities), memory=memory))

    def _measure(
        self, engine: str, quantities: Sequence[GradientQuantity], block: Replications
    ) -> MomentSums:
        sums: MomentSums = engine_of(engine).measure(self, quantities, block)
        return sums


def engine_of(name: str) -> ModuleType:
    """An engine: a module with ``measure``. It is imported late because it imports this module.

    Raises:
        InputError: the engine does not exist, or its library is missing.
    """
    one_of("engine", name, (*ENGINES, *OTHERS))
    return OTHERS[name]() if name in OTHERS else import_module(f".{name}", __package__)
