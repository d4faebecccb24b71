"""What every engine shares: cells, quantities, and the sums a block of replications leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..designs import check_design
from ..estimators import advantages, canonical
from ..problems import SoftmaxBandit
from ..validation import InputError, finite_array, integer

__all__ = [
    "ENGINES",
    "Cell",
    "Distance",
    "Draws",
    "Engine",
    "Estimator",
    "InfeasibleError",
    "MomentSums",
    "Projection",
    "Quantity",
    "SquaredError",
    "SquaredProjection",
    "direction",
    "get_engine",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


PROMPT_ONLY = ("vanilla", "constant", "oracle", "minimum-variance")
"""The baselines that are functions of the prompt: :meth:`Estimator.baseline_values` knows them."""


class InfeasibleError(InputError):
    """Enumeration would be too large; the message says how large."""


@dataclass(frozen=True)
class Cell:
    """One point of a claim's design: a problem, a group size, a batch size, how prompts are drawn.

    Arguments:
        problem: what the policy is trained on.
        group_size: G >= 1.
        batch_size: B >= 1.
        design: iid, fixed (each context once, in order) or without-replacement.

    Raises:
        InputError: a size that is not a positive whole number, an unknown design, or one that does
            not fit the problem.
    """

    problem: SoftmaxBandit
    group_size: int
    batch_size: int = 1
    design: str = "iid"

    def __post_init__(self) -> None:
        integer("group size", self.group_size)
        check_design(self.design, self.batch_size, self.problem.contexts, self.problem.uniform)

    @property
    def outputs(self) -> int:
        """Drawn in one replication: B G."""
        return self.batch_size * self.group_size

    @property
    def name(self) -> str:
        """The cell's address in the space of draws."""
        return f"{self.problem.digest}/G{self.group_size}/B{self.batch_size}/{self.design}"


@dataclass(frozen=True, eq=False)
class Draws:
    """Outcomes of some minibatches, with leading axes S (replications).

    Arguments:
        contexts: S + (B,).
        arms: S + (B, G).
        rewards: S + (B, G).
        squared_norms: ‖s‖² of each output, S + (B, G).
    """

    contexts: Integers
    arms: Integers
    rewards: Array
    squared_norms: Array


@dataclass(frozen=True)
class Estimator:
    """A gradient estimator: a baseline by name, or any function that gives advantages.

    Arguments:
        baseline: a name the library knows, or a label of your own where ``function`` is given.
        constant: the number subtracted, for the baseline constant.
        function: (rewards S + (B, G), :class:`Draws`) to advantages S + (B, G); engines that are
            compiled refuse it.
    """

    baseline: str
    constant: float | None = None
    function: Callable[[Array, Draws], Array] | None = None

    def __post_init__(self) -> None:
        if self.function is None:
            object.__setattr__(self, "baseline", canonical(self.baseline))
            if self.baseline == "critic":
                raise InputError("engines have no critic: use constant or a function")
            if (self.constant is not None) != (self.baseline == "constant"):
                raise InputError("a constant is given with, and only with, the baseline constant")
            if self.constant is not None:
                finite_array("constant", self.constant, 0)

    @property
    def label(self) -> str:
        """How results call it."""
        return self.baseline if self.constant is None else f"constant={self.constant!r}"

    def baseline_values(self, problem: SoftmaxBandit) -> Array | None:
        """b(x) where the baseline depends on the prompt only, (X,); else None."""
        if self.function is not None or self.baseline not in PROMPT_ONLY:
            return None
        if self.baseline == "vanilla":
            return np.zeros(problem.contexts)
        if self.baseline == "constant":
            return np.full(problem.contexts, self.constant)
        # From the outcomes, not from the moments that predictions read: evidence shares no code.
        outcomes = problem.outcomes
        value = (outcomes.probs * outcomes.rewards).sum(axis=1)
        if self.baseline == "oracle":
            return value
        rows = np.arange(problem.contexts)[:, None]
        weights = outcomes.probs * problem.policy.squared_norms[rows, outcomes.arms]
        total = weights.sum(axis=1)
        shift = (weights * (outcomes.rewards - value[:, None])).sum(axis=1)
        return value + shift / np.where(total > 0, total, 1.0)

    def advantages(self, problem: SoftmaxBandit, draws: Draws) -> Array:
        """Advantages of the drawn outputs, S + (B, G)."""
        if self.function is not None:
            out = np.asarray(self.function(draws.rewards, draws), dtype=np.float64)
            if out.shape != draws.rewards.shape:
                raise InputError(
                    f"{self.label} returned shape {out.shape} for rewards {draws.rewards.shape}"
                )
            return finite_array(f"advantages of {self.label}", out)
        if self.baseline == "norm-weighted":
            return np.asarray(
                advantages(self.baseline, draws.rewards, squared_norms=draws.squared_norms)
            )
        values = self.baseline_values(problem)
        if values is None or self.baseline == "vanilla":
            return np.asarray(advantages(self.baseline, draws.rewards))
        if self.baseline == "constant":
            return np.asarray(advantages("constant", draws.rewards, constant=self.constant))
        keyword = {"oracle": "value", "minimum-variance": "optimal_baseline"}[self.baseline]
        return np.asarray(
            advantages(self.baseline, draws.rewards, **{keyword: values[draws.contexts]})
        )


@dataclass(frozen=True)
class SquaredError:
    """‖ĝ - g‖², whose mean is the MSE."""

    estimator: Estimator

    @property
    def label(self) -> str:
        return f"mse[{self.estimator.label}]"


@dataclass(frozen=True)
class Distance:
    """‖ĝ₁ - ĝ₂‖² of two estimators on the same draws."""

    first: Estimator
    second: Estimator

    @property
    def label(self) -> str:
        return f"distance[{self.first.label},{self.second.label}]"


@dataclass(frozen=True)
class Projection:
    """⟨ĝ - g, u⟩ along the unit vector :func:`direction` of that number: 0 in the mean if unbiased."""

    estimator: Estimator
    number: int = 0

    @property
    def label(self) -> str:
        return f"projection{self.number}[{self.estimator.label}]"


@dataclass(frozen=True)
class SquaredProjection:
    """⟨ĝ - g, u⟩², whose mean is uᵀ E[(ĝ-g)(ĝ-g)ᵀ] u."""

    estimator: Estimator
    number: int = 0

    @property
    def label(self) -> str:
        return f"squared-projection{self.number}[{self.estimator.label}]"


Quantity = SquaredError | Distance | Projection | SquaredProjection


def direction(problem: SoftmaxBandit, number: int) -> Array:
    """The unit vector of that number in parameter space, fixed by the problem, (d,)."""
    vector = np.random.default_rng([int(problem.digest, 16), number]).normal(size=problem.d)
    return np.asarray(vector / np.linalg.norm(vector))


def check_block(quantities: Sequence[Quantity], first: int, replications: int) -> None:
    """Refuse a block that draws nothing, measures nothing or lies outside the addresses."""
    integer("replications", replications)
    if not quantities:
        raise InputError("a block needs at least one quantity")
    if integer("first replication", first, 0) + replications > 2**63:
        raise InputError(f"first replication is {first}: replications end at 2^63")


def check_estimators(cell: Cell, quantities: Iterable[Quantity]) -> None:
    """Refuse leave-one-out baselines in a group of one."""
    for estimator in estimators_of(quantities):
        leaves_out = estimator.function is None and estimator.baseline in ("grpo", "norm-weighted")
        if leaves_out and cell.group_size < 2:
            raise InputError(
                f"{estimator.label} needs a group of at least 2: group size is {cell.group_size}"
            )


def estimators_of(quantities: Iterable[Quantity]) -> list[Estimator]:
    """The estimators that the quantities speak of, each once, in order of appearance."""
    seen: dict[Estimator, None] = {}
    for quantity in quantities:
        pair = (
            (quantity.first, quantity.second)
            if isinstance(quantity, Distance)
            else (quantity.estimator,)
        )
        seen.update(dict.fromkeys(pair))
    return list(seen)


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Count, mean and centred cross products of some quantities: all that a block leaves behind.

    Merging follows Chan, Golub and LeVeque (1979).

    Arguments:
        n: replications; 0 where the mean is an enumerated one.
        mean: (Q,).
        products: Σ (q - mean)(q - mean)ᵀ, (Q, Q).
        counts: histograms by the label of their quantity, of those that keep one.

    >>> one, two = MomentSums.of([[1.0], [3.0]]), MomentSums.of([[5.0]])
    >>> merged = one.merge(two)
    >>> merged.n, merged.mean, merged.products
    (3, array([3.]), array([[8.]]))
    """

    n: int
    mean: Array
    products: Array
    counts: Mapping[str, Integers] = field(default_factory=dict)

    @classmethod
    def of(cls, values: object) -> MomentSums:
        """The sums of raw values (n, Q)."""
        array = np.asarray(values, dtype=np.float64)
        mean = array.mean(axis=0)
        centred = array - mean
        return cls(len(array), mean, centred.T @ centred)

    @classmethod
    def exact(cls, mean: Array) -> MomentSums:
        """Means known without sampling error."""
        return cls(0, mean, np.zeros((len(mean), len(mean))))

    def merge(self, other: MomentSums) -> MomentSums:
        """The sums of both samples together."""
        if not self.n or not other.n:
            raise ValueError("enumerated means are not merged")
        n = self.n + other.n
        shift = other.mean - self.mean
        return MomentSums(
            n,
            self.mean + shift * (other.n / n),
            self.products + other.products + np.outer(shift, shift) * (self.n * (other.n / n)),
            {label: self.counts[label] + other.counts[label] for label in self.counts},
        )

    @cached_property
    def covariance(self) -> Array:
        """Unbiased covariance of the quantities, (Q, Q); 0 where the means are exact."""
        return self.products / max(self.n - 1, 1)


class Engine(Protocol):
    """What runs cells."""

    name: str
    enumerates: bool

    def check(self, cell: Cell, quantities: Sequence[Quantity]) -> None:
        """Raise :class:`InputError` where this engine cannot measure that."""

    def measure(
        self,
        cell: Cell,
        quantities: Sequence[Quantity],
        *,
        seed: int = 0,
        first: int = 0,
        replications: int = 0,
    ) -> MomentSums:
        """Replications ``first`` to ``first + replications`` of the cell (all outcomes if exact)."""


ENGINES = ("exact", "reference", "cpu", "cuda", "autograd")


def get_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        InputError: there is none.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown: choose one of {', '.join(ENGINES)}")
    engine: Engine = import_module(f".gradients.{name}", __package__).ENGINE
    return engine
