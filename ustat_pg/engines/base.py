"""The base of all cells, which plans, blocks and verdicts need, and the sums of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import registry
from ..estimators import advantages
from ..files.digests import digest
from ..problems import SoftmaxBandit
from ..problems.minibatch import expected_reward, optimal_baseline
from ..registry import ESTIMATORS, Record
from ..validation import Array, InputError, finite_array, integer

Integers = NDArray[np.int64]


NEEDS = ("constant", "value", "optimal_baseline", "squared_norms", "earlier")
"""Arguments that engines can give an advantage function besides the rewards."""

RUNNABLE = tuple(name for name, record in ESTIMATORS.items() if set(record.needs) <= set(NEEDS))
"""The estimators that engines can run when they know only a name and perhaps a constant."""

OUTPUTS_OF_A_GRADIENT = 256
"""Outputs of a training run that count as one replication of a gradient in a budget."""


class InfeasibleError(InputError):
    """Enumeration would be too large; the message says how large."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Outcomes of some minibatches, with leading axes S (replications).

    Arguments:
        contexts: S + (B,).
        arms: S + (B, G).
        rewards: S + (B, G).
        squared_norms: ‖s‖² of each output, S + (B, G).
        earlier: earlier rewards of each prompt, S + (B, n); None if no estimator needs them.
    """

    contexts: Integers
    arms: Integers
    rewards: Array
    squared_norms: Array
    earlier: Array | None = None


@dataclass(frozen=True)
class Estimator:
    """A gradient estimator: a known one by its name, or any function that returns advantages.

    Arguments:
        name: a name that the library knows, or your own label if ``function`` is given.
        constant: the number that the estimator ``constant`` subtracts.
        function: maps (rewards S + (B, G), :class:`Draws`) to advantages S + (B, G);
            compiled engines refuse it.
        within_rewards: whether the function's baseline always lies within the range of the group's
            rewards, as a median does; intervals of simulations need this bound.
        values: V_φ(x), the number that the estimator ``critic`` subtracts at each prompt; only gradients
            at fixed parameters accept it.
        memory: n, the earlier rewards of each prompt that a function reads; a known estimator has it in its
            name. Only gradients at fixed parameters have earlier rewards.

    >>> Estimator("rloo").name
    'grpo'
    """

    name: str
    constant: float | None = None
    function: Callable[[Array, Draws], Array] | None = None
    values: tuple[float, ...] | None = None
    within_rewards: bool = False
    memory: int = 0

    def __post_init__(self) -> None:
        if self.function is None:
            if self.within_rewards or self.memory:
                raise InputError(
                    "within_rewards and memory require an estimator that is a function"
                )
            (record, carried), learned = registry.parse(self.name), self.values is not None
            if "memory" in carried:
                object.__setattr__(self, "memory", integer("memory", carried["memory"]))
            _, colon, numbers = self.name.partition(":")
            object.__setattr__(self, "name", record.name + colon + numbers)
            if record.name not in RUNNABLE and not learned:
                raise InputError(
                    f"engines have no {self.name}: use constant or a function, or one of "
                    f"{', '.join(RUNNABLE)}"
                )
            if learned and "predicted_value" not in record.needs:
                raise InputError("`values` requires estimator 'critic', and vice versa")
            if (self.constant is not None) != ("constant" in record.needs):
                raise InputError("`constant` requires estimator 'constant', and vice versa")
            if self.constant is not None:
                finite_array("constant", self.constant, 0)
            if self.values is not None:
                finite_array("values of the critic", self.values, 1)

    @property
    def label(self) -> str:
        """The estimator's name in results."""
        if self.values is not None:
            return f"critic={digest(self.values)}"
        return self.name if self.constant is None else f"constant={self.constant!r}"

    @property
    def record(self) -> Record:
        """The known facts about the estimator; for a function these are few."""
        if self.function is not None:
            return Record(self.name, within_rewards=self.within_rewards)
        return registry.record_of(self.name)

    def require_group(self, group_size: int) -> None:
        """Refuse a group of one output, which has no others for a leave-one-out mean."""
        if self.function is None:
            registry.require_group(self.name, group_size)

    def require_name(self, name_of_runs: str) -> None:
        """Refuse a function or a critic, which runs of parameters that change cannot take."""
        if self.function is not None or self.values is not None:
            raise InputError(
                f"{name_of_runs} cannot take {self.label}: choose one of {', '.join(RUNNABLE)}"
            )

    def weigh(self, rewards: Any, **find: Callable[[], Any]) -> Any:
        """The advantages of an estimator that the library knows by name, in the rewards' own library."""
        find["constant"] = lambda: self.constant
        known = {}
        for need in self.record.needs:
            if need not in find:
                raise InputError(f"{self.label} cannot be run here: its {need} is not known")
            known[need] = find[need]()
        return advantages(self.name, rewards, **known)

    def by_count(self, group_size: int) -> tuple[Array, Array]:
        """The advantages of a success and of a failure by the number of successes, (G+1,) each, for an
        estimator that is such a table with rewards 0 and 1; the entry is 0 if no such output exists.
        """
        place = np.arange(group_size)
        groups = (place < np.arange(group_size + 1)[:, None]).astype(np.float64)
        table = np.asarray(advantages(self.name, groups))
        return np.append(0.0, table[1:, 0]), np.append(table[:-1, -1], 0.0)

    def baseline_values(self, problem: SoftmaxBandit) -> Array | None:
        """b(x), (X,), if the baseline depends on the prompt only; otherwise None."""
        if not self.record.of_prompt:
            return None
        none = np.zeros((problem.contexts, 1))
        # The reward 0 minus the baseline.
        return np.asarray(0.0 - self._of_problem(problem, none)[:, 0])

    def _of_problem(
        self,
        problem: SoftmaxBandit,
        rewards: Array,
        contexts: Integers | slice = slice(None),
        squared_norms: Array | None = None,
        earlier: Array | None = None,
    ) -> Array:
        # Computed from the outcomes, not from the moments in predictions, because evidence shares no code.
        outcomes = problem.outcomes
        rows = np.arange(problem.contexts)[:, None]
        if self.values is not None and len(self.values) != problem.contexts:
            raise InputError(
                f"the critic has {len(self.values)} values: one per prompt ({problem.contexts}) is needed"
            )

        def best() -> Array:
            norms = problem.policy.squared_norms[rows, outcomes.arms]
            return optimal_baseline(outcomes.probs, outcomes.rewards, norms)[contexts]

        def remembered() -> Array:
            if earlier is None:
                raise InputError(f"{self.label} cannot be run here: its earlier is not known")
            # There are as many as the estimator with the longest memory needs.
            return earlier[..., : self.memory]

        return np.asarray(
            self.weigh(
                rewards,
                value=lambda: expected_reward(outcomes.probs, outcomes.rewards)[contexts],
                optimal_baseline=best,
                squared_norms=lambda: squared_norms,
                earlier=remembered,
                predicted_value=lambda: np.asarray(self.values)[contexts],
            )
        )

    def advantages(self, problem: SoftmaxBandit, draws: Draws) -> Array:
        """Advantages of the drawn outputs, S + (B, G)."""
        if self.function is None:
            return self._of_problem(
                problem, draws.rewards, draws.contexts, draws.squared_norms, draws.earlier
            )
        out = np.asarray(self.function(draws.rewards, draws), dtype=np.float64)
        if out.shape != draws.rewards.shape:
            raise InputError(
                f"{self.label} returned shape {out.shape} for rewards {draws.rewards.shape}"
            )
        return finite_array(f"advantages of {self.label}", out)


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Count, mean and centred cross products of some quantities, the complete result of a block.

    Merging follows Chan, Golub and LeVeque (1979).

    Arguments:
        n: number of replications; 0 if the mean is enumerated.
        mean: (Q,).
        products: Σ (q - mean)(q - mean)ᵀ, (Q, Q).
        counts: histograms by the label of their quantity, for quantities that keep one.

    >>> one, two = MomentSums.of([[1.0], [3.0]]), MomentSums.of([[5.0]])
    >>> merged = one.merge(two)
    >>> merged.n, merged.mean, merged.products
    (3, array([3.]), array([[8.]]))
    >>> merged.standard_error.round(4)
    array([1.1547])
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
            raise ValueError("enumerated means cannot be merged")
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
        """Unbiased covariance of the quantities, (Q, Q); 0 if the means are exact."""
        return self.products / max(self.n - 1, 1)

    @property
    def standard_error(self) -> Array:
        """Standard errors of the means, (Q,); 0 if the means are exact."""
        return np.asarray(np.sqrt(self.covariance.diagonal() / max(self.n, 1)))


class Quantity(Protocol):
    """A quantity measured on a cell: one number per replication."""

    @property
    def label(self) -> str:
        """The name in blocks and stored results; equal quantities have equal labels."""


@dataclass(frozen=True)
class Replications:
    """The replications of one block.

    Arguments:
        seed: seed of the draws.
        first: the number of the first replication.
        count: number of replications; 0 where outcomes are enumerated.
        whole: the replications of the cell of which these are a part. For many an engine may compile more;
            no number depends on it, up to a last bit.
    """

    seed: int = 0
    first: int = 0
    count: int = 0
    whole: int = 0


ENGINES = ("exact", "reference", "cpu", "cuda")
"""The engines for gradients that are part of the library."""


class Cell(ABC):
    """One point of a claim's design: the draws as plans, blocks and verdicts see them."""

    group_size: int
    batch_size: int
    steps: int
    """The minibatches of one replication."""

    engines: tuple[str, ...]
    """The engines that can measure the cell."""

    measures: tuple[type, ...] = ()
    """The quantities of the cell."""

    settles: bool = True
    """Whether every mean that can be enumerated is certain; if not, an uncertain mean is NaN."""

    bounded: bool = True
    """Whether the quantities have known ranges; if not, means are assumed to be nearly normal."""

    least: int = 1
    """The fewest replications for a verdict, because a mean of few may be far from normal."""

    reserve: float = 1.0
    """The factor by which a plan exceeds the replications that a pilot asks for."""

    looks: int = 2
    """The most looks at verdicts, each with twice as many replications as the last. A pilot that met
    too few rare draws gives a poor estimate.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The address of the draws, and a digest of all that the address leaves out."""

    @property
    @abstractmethod
    def block(self) -> int:
        """The number of replications in a block."""

    @property
    def device_block(self) -> int:
        """The number of replications in a block of the engine cuda, which is idle between blocks."""
        return self.block

    @property
    def outputs(self) -> int:
        """The number of outputs drawn in one replication: T B G."""
        return self.steps * self.batch_size * self.group_size

    def pilot(self, replications: int) -> int:
        """The number of replications from which a plan is made, if blocks are large enough."""
        return max(min(256, self.block), min(replications, self.block // 4))

    def budget(self, replications: int) -> int:
        """The number of replications with the cost of this number of a gradient's: one per 256 outputs."""
        return max(self.block, replications * OUTPUTS_OF_A_GRADIENT // self.outputs)

    def together(self, quantities: Sequence[Quantity]) -> Sequence[Quantity]:
        """The quantities that a block measures if these are requested. It adds related ones, so that
        requests for other quantities can use the same block.
        """
        return quantities

    def shown(self, blocks: float) -> float:
        """The blocks for a point of a figure that needs this many replications."""
        return blocks

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def engine(self, name: str) -> str:
        """The engine that really runs the cell if that one is requested; some cells have only one."""
        drawing = [engine for engine in self.engines if engine != "exact"]
        return name if len(drawing) > 1 else drawing[0]

    def on(self, device: str) -> Cell:
        """The cell with its gradients on cpu, cuda or cuda:N, unless the cell already names a device."""
        return self

    @abstractmethod
    def range(self, quantity: Quantity) -> tuple[float, float]:
        """The least and the greatest value of a quantity, or looser bounds."""

    @cached_property
    def _ends(self) -> dict[Quantity, tuple[float, float]]:
        return {}

    def ends(self, quantity: Quantity) -> tuple[float, float]:
        """The range of a quantity, which is computed once."""
        if quantity not in self._ends:
            self._ends[quantity] = self.range(quantity)
        return self._ends[quantity]

    @abstractmethod
    def rounding(self, quantity: Quantity) -> float:
        """The largest possible error of the enumerated mean of a quantity."""

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse a quantity that the cell does not have."""
        if not isinstance(quantity, self.measures):
            raise InputError(f"{quantity!r} is not a quantity of a {type(self).__name__}")

    def require_quantities(self, quantities: Sequence[Quantity]) -> None:
        """Refuse quantities that cannot be measured together."""
        if not quantities:
            raise InputError("a block needs at least one quantity")
        for quantity in quantities:
            self.require_quantity(quantity)

    @abstractmethod
    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        """Raise :class:`InfeasibleError` where a quantity's mean cannot be enumerated."""

    def effort(self, quantities: Sequence[Quantity]) -> float:
        """The rough time of an enumeration, to compare cells of one class. The unit for gradients is one
        advantage.
        """
        return float(len(quantities))

    def measure(
        self,
        engine: str,
        quantities: Sequence[Quantity],
        *,
        seed: int = 0,
        first: int = 0,
        replications: int = 0,
        whole: int = 0,
    ) -> MomentSums:
        """Replications ``first`` to ``first + replications``; all outcomes by the exact engine.

        Arguments:
            engine: a name in :attr:`engines`.
            quantities: the quantities to measure.
            seed: seed of the draws, a whole number of at least 0; the exact engine has none.
            whole: the replications of all calls for the cell, if this is one of several: for many the engine
                cuda compiles a kernel of their own.

        Raises:
            InputError: the engine or quantity is unknown, the engine does not know an estimator,
                a library or a device is missing, or replications are outside the addresses.
            InfeasibleError: the exact engine would have too much to enumerate.
        """
        self.require_quantities(quantities)
        integer("seed", seed, 0)
        if engine == "exact":
            self.require_exact(quantities)
            return self._measure(engine, quantities, Replications())
        if engine not in self.engines:
            raise InputError(
                f"engine {engine!r} cannot run a {type(self).__name__}: choose one of "
                f"{', '.join(self.engines)}"
            )
        return self._measure(engine, quantities, block_of(seed, first, replications, whole))

    @abstractmethod
    def _measure(self, engine: str, quantities: Sequence[Any], block: Replications) -> MomentSums:
        """The sums of a block, for quantities of this cell."""


def block_of(seed: int, first: int, replications: int, whole: int = 0) -> Replications:
    """The replications of a block. An empty block, or one outside the addresses, is refused."""
    integer("replications", replications)
    if integer("first replication", first, 0) + replications > 2**63:
        raise InputError(f"first replication is {first}: replications end at 2^63")
    whole = max(integer("whole", whole, 0), replications)
    return Replications(integer("seed", seed, 0), first, replications, whole)
