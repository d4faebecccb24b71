"""Cells of whole training runs of networks: token problems, many independent runs at once.

A :class:`NetworkTraining` is what :class:`~ustat_pg.engines.Training` is for bandits with an interior
optimum. A run starts at the policy's parameters θ₀ and takes T steps θₜ = θₜ₋₁ + ηₜ ĝₜ, ĝₜ from B
prompts with G outputs each at θₜ₋₁, drawn token by token; or those of another optimizer, see
:mod:`~ustat_pg.engines.networks.optimizers`. Parameters of many runs are stacked, and one pass of
the network serves them all.

Draws are addressed, see :mod:`ustat_pg.rng`, by the key of (seed, :attr:`NetworkTraining.address`) as
those of :mod:`~ustat_pg.engines.runs.trajectory` are:

- prompts: slot CONTEXT_SLOT, word n chooses prompt n = (t - 1) B + b of the whole run;
- outputs of prompt b at step t: slot ``step_slots(t, b)``, where output i of at most l tokens takes
  the l + 1 words from (l + 1) i on: one for each token, and the last for its reward;
- the start: slot ``step_slots(0, 0)``, where word j is the normal deviate of coordinate j.

Tokens are chosen as a trajectory's arms are, so that a bandit, whose outputs are of one token, has
the very runs that the trajectory engines give it.

This module needs no torch; the runs themselves do.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from ...digests import digest
from ...memory import out_of_memory, slices
from ...policies import ArmLinearSoftmax, SharedLinearSoftmax, SoftmaxPolicy, TabularSoftmax
from ...problems import SoftmaxBandit, TokenBandit, TokenProblem
from ...validation import InputError, device_name, frozen, integer, one_of
from ..base import (
    Array,
    Cell,
    Estimator,
    InfeasibleError,
    MomentSums,
    Quantity,
    Replications,
    block_of,
)
from ..runs.cell import Gap
from ..runs.schedules import Schedule
from ..runs.trajectory import require_run, spread, start_scale, steps_kept
from .optimizers import Muon, Optimizer, Sgd, optimizer_of

__all__ = ["NetworkTraining", "OutOfMemory", "PolicyQuantity"]

_OF_BANDITS = (TabularSoftmax, ArmLinearSoftmax, SharedLinearSoftmax)
_PRECISIONS = ("float64", "float32")

_RUNNERS = {"autograd": "runs"}
"""The module of this folder that each engine is."""

_EXACTNESS = 1e-9
"""What an enumerated J may be off by, of its range."""

_NORM_BYTES = 2**30
"""Scores of all outputs, wanted at every step, are refused above this size."""


class OutOfMemory(MemoryError):
    """So many runs at once do not fit in memory.

    Arguments:
        chunk: number of runs that there were.

    >>> str(OutOfMemory(8))
    'out of memory with 8 runs at once'
    """

    def __init__(self, chunk: int) -> None:
        super().__init__(chunk)
        self.chunk = chunk

    def __str__(self) -> str:
        return f"out of memory with {self.chunk} runs at once"


class PolicyQuantity:
    """A number of the bandit that a network is at θₜ, measured along training.

    Arguments:
        estimator: estimator of the runs.
        step: t.
    """

    estimator: Estimator
    step: int

    @property
    @abstractmethod
    def label(self) -> str:
        """The name in results; equal quantities have equal labels."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """The least and the greatest value."""

    @abstractmethod
    def of(self, bandit: SoftmaxBandit) -> float:
        """The value at one run's parameters."""


@dataclass(frozen=True, eq=False)
class NetworkTraining(Cell):
    """A cell of whole training runs of a network. Equal if all that is asked is equal.

    Arguments:
        problem: prompts, outputs and a verifier; or a bandit.
        policy: policy at θ₀, a TransformerPolicy or a PrefixSoftmax; of a bandit its own, which is
            tabular, linear in features of the arm, or linear in the context.
        group_size: G >= 1.
        steps: T, 1 to 2²⁰, the most that a quantity may ask for.
        schedule: the rates η₁ to η_T.
        batch_size: B, 1 to 2¹⁰.
        design: iid, or epochs: each epoch takes all X prompts in a new random order, B a step; B
            divides X, and the prompts are equally likely.
        start_scale: standard deviation of a normal spread of θ₀, a number or (d,).
        device: cpu, cuda or cuda:N.
        precision: precision of the network, float64 or float32. θ itself is kept in float64.
        chunk: runs at once; None for all of a block.
        block: runs in a block.
        optimizer: sgd, adam or muon, or one of these with numbers of its own; muon needs the hidden
            layers of a network.

    Raises:
        InputError: what does not fit the above.
    """

    problem: TokenProblem | SoftmaxBandit
    policy: SoftmaxPolicy
    group_size: int
    steps: int
    schedule: Schedule
    batch_size: int = 1
    design: str = "iid"
    start_scale: ArrayLike = 0.0
    device: str = "cpu"
    precision: str = "float64"
    chunk: int | None = None
    block: int = 32
    optimizer: str | Optimizer = "sgd"

    def __post_init__(self) -> None:
        self._require_policy()
        require_run(
            self.group_size,
            self.steps,
            self.schedule,
            self.batch_size,
            self.design,
            self.context_probs,
        )
        object.__setattr__(self, "start_scale", frozen(start_scale(self.start_scale, self.d)))
        device_name(self.device)
        one_of("precision", self.precision, _PRECISIONS)
        integer("block", self.block)
        if self.chunk is not None:
            integer("chunk", self.chunk)
        object.__setattr__(self, "optimizer", optimizer_of(self.optimizer))
        if isinstance(self.optimizer, Muon) and not self.policy.hidden_matrices:
            raise InputError(
                f"muon steps the matrices of hidden layers: a {type(self.policy).__name__} has "
                "none, choose sgd or adam"
            )

    def _require_policy(self) -> None:
        if isinstance(self.problem, TokenBandit):
            raise InputError("problem is a TokenBandit: give the TokenProblem and the policy apart")
        if isinstance(self.problem, SoftmaxBandit):
            if self.policy is not self.problem.policy:
                raise InputError("the policy of a bandit must be the bandit's own")
            if not isinstance(self.policy, _OF_BANDITS):
                raise InputError(
                    f"the bandit's policy is a {type(self.policy).__name__}: it must be one of "
                    f"{', '.join(kind.__name__ for kind in _OF_BANDITS)}"
                )
            return
        if not isinstance(self.problem, TokenProblem):
            raise InputError(
                f"problem is {self.problem!r}: it must be a TokenProblem or a SoftmaxBandit"
            )
        if self.policy.space is None:
            raise InputError(
                f"the policy's outputs are None: the problem's are {self.problem.space}"
            )
        self.problem.require_policy(self.policy)

    # The problem, as the runs read it.

    @property
    def kind(self) -> str:
        """The kind of device."""
        return self.device.partition(":")[0]

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.policy.d

    @property
    def context_probs(self) -> Array:
        """ρ(x), (X,)."""
        own = self.problem
        return np.asarray(own.probs if isinstance(own, TokenProblem) else own.context_probs)

    @property
    def mean_rewards(self) -> Array:
        """E[z | x, k], (X, K)."""
        own = self.problem
        return own.rewards if isinstance(own, TokenProblem) else own.mean_rewards

    @property
    def reward_law(self) -> tuple[Array, Array]:
        """Values of the reward and their probabilities, (X, K, V) each."""
        if isinstance(self.problem, TokenProblem):
            rewards = self.problem.rewards[:, :, None]
            return rewards, np.ones_like(rewards)
        return self.problem.reward_values, self.problem.reward_probs

    @property
    def optimum(self) -> float:
        """J*, the return of the best policy there is (which the policy's family need not hold)."""
        return float(self.context_probs @ self.mean_rewards.max(axis=1))

    def at(self, theta: Array) -> SoftmaxBandit:
        """The bandit that the policy is at other parameters (d,), whose moments are exact."""
        if isinstance(self.problem, TokenProblem):
            return self.problem.bandit(self.policy.with_theta(theta))
        return self.problem.with_theta(theta)

    def starts(self, block: Replications) -> Array:
        """θ₀ of the runs, (R, d)."""
        return spread(self.policy.theta, np.asarray(self.start_scale), self.address, block)

    # Names.

    @cached_property
    def address(self) -> str:
        """The runs' address in the space of draws.

        A bandit's is that of its trajectories. That of a token problem holds nothing of the policy,
        so that policies and starts are compared on the same draws.
        """
        sizes = f"G{self.group_size}/B{self.batch_size}/{self.design}"
        if isinstance(self.problem, SoftmaxBandit):
            return f"trajectory/{self.problem.digest}/{sizes}"
        prompts = [",".join(map(str, prompt)) for prompt in self.problem.prompts]
        arrays = {
            "probs": self.context_probs,
            **self.problem.space.arrays(),
            "rewards": self.problem.rewards,
        }
        return f"network/{digest(json.dumps(prompts), arrays)}/{sizes}"

    @cached_property
    def name(self) -> str:
        """The address of the draws, and a digest of what is not in it."""
        # The address names a bandit's policy.
        arrays = {} if self.policy.in_files else self.policy.arrays()
        words = [
            type(self.policy).__name__,
            self.steps,
            repr(self.schedule),
            self.kind,
            self.precision,
            self.chunk,
            self.block,
            # What it was before there were others.
            *([] if isinstance(self.optimizer, Sgd) else [repr(self.optimizer)]),
        ]
        arrays |= {"theta": self.policy.theta, "start_scale": np.asarray(self.start_scale)}
        address = self.address.partition("/")[2]
        return f"network/{address}/{digest(json.dumps(words), arrays)}"

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, NetworkTraining) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    # What a cell of runs has to answer.

    engines = tuple(_RUNNERS)

    def engine(self, asked: str) -> str:
        """The one engine that there is for networks."""
        return "autograd"

    def halved(self) -> NetworkTraining | None:
        """These runs with half as many at once; None where it is one already."""
        chunk = min(self.chunk or self.block, self.block) // 2
        return replace(self, chunk=chunk) if chunk else None

    def range(self, quantity: Quantity) -> tuple[float, float]:
        known = _quantity(quantity)
        if not isinstance(known, Gap):
            low, high = known.range
            return float(low), float(high)
        worst = float(self.context_probs @ self.mean_rewards.min(axis=1))
        return 0.0, known.scale * (self.optimum - worst)

    def rounding(self, quantity: Quantity) -> float:
        """The most that the enumerated value of a quantity at one run's parameters may be off by."""
        low, high = self.range(quantity)
        return _EXACTNESS * (high - low)

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse what is no quantity of these runs, and steps that they do not take."""
        known = _quantity(quantity)
        if integer("step", known.step, 0) > self.steps:
            raise InputError(f"step is {known.step}: the runs take {self.steps}")
        self.require_estimator(known.estimator)

    def require_estimator(self, estimator: Estimator) -> None:
        """Refuse an estimator that these runs cannot take."""
        if not isinstance(estimator, Estimator):
            raise InputError(f"estimator is {estimator!r}: it must be an Estimator")
        estimator.require_name("training runs")
        estimator.require_group(self.group_size)
        if "optimal_baseline" in estimator.record.needs:
            contexts, outputs = self.mean_rewards.shape
            scores = min(contexts, self.batch_size) * outputs
            if 8 * scores * self.d > _NORM_BYTES:
                raise InputError(
                    f"{estimator.label} needs scores of {scores} outputs in {self.d} parameters at "
                    f"every step, {8 * scores * self.d / 2**30:.1f} GiB: at most "
                    f"{_NORM_BYTES / 2**30:g} GiB is allowed; take norm-weighted instead"
                )

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        """Raise :class:`InfeasibleError`, always."""
        self.require_quantities(quantities)
        raise InfeasibleError("whole runs of a network are simulated: they are not enumerated")

    def _measure(
        self, engine: str, quantities: Sequence[Gap | PolicyQuantity], block: Replications
    ) -> MomentSums:
        columns: dict[Estimator, list[int]] = {}
        for column, quantity in enumerate(quantities):
            columns.setdefault(quantity.estimator, []).append(column)
        _runs(engine)  # Its threads are limited once it is there.
        values = np.empty((block.count, len(quantities)))
        # Blocks are the only parallel layer. This limit is the calling thread's own.
        with threadpool_limits(1, user_api="openmp"):
            for estimator, places in columns.items():
                asked = [quantities[column] for column in places]
                snapshots = sorted({quantity.step for quantity in asked})
                theta = self.train(
                    estimator,
                    snapshots,
                    seed=block.seed,
                    first=block.first,
                    replications=block.count,
                )
                values[:, places] = self._values(theta, snapshots, asked)
        return MomentSums.of(values)

    def train(
        self,
        estimator: Estimator,
        snapshots: Sequence[int],
        *,
        seed: int = 0,
        first: int = 0,
        replications: int = 1,
    ) -> Array:
        """θ at the snapshots, of runs ``first`` to ``first + replications``: (R, S, d), in float64.

        Arguments:
            estimator: estimator with the name of a baseline; V and b* are those of the current θ.
            snapshots: steps at which θ is kept, increasing, 0 the start.

        Raises:
            InputError: what does not fit, torch or a device that is not there, or a run whose
                log-probabilities are not finite; run, step and rate are named.
            OutOfMemory: so many runs at once do not fit.
        """
        block_of(seed, first, replications)
        self.require_estimator(estimator)
        kept = list(steps_kept(snapshots, self.steps))
        run = _runs().run
        parts = [
            _in_memory(run, self, estimator, kept, seed, first + some.start, some.stop - some.start)
            for some in slices(replications, self.chunk or self.block)
        ]
        return np.concatenate(parts)

    def _values(
        self, theta: Array, snapshots: Sequence[int], quantities: Sequence[Gap | PolicyQuantity]
    ) -> Array:
        """Quantities of one estimator at parameters (R, S, d): (R, their number)."""
        values = np.empty((len(theta), len(quantities)))
        for place, step in enumerate(snapshots):
            columns = [(at, each) for at, each in enumerate(quantities) if each.step == step]
            gaps = [(at, each) for at, each in columns if isinstance(each, Gap)]
            probes = [(at, each) for at, each in columns if isinstance(each, PolicyQuantity)]
            if gaps:
                off = self.optimum - _in_memory(_runs().objectives, self, theta[:, place])
            for column, gap in gaps:
                values[:, column] = gap.of(off)
            for run, point in enumerate(theta[:, place] if probes else ()):
                # One bandit for all: it keeps the moments that it has computed.
                bandit = self.at(point)
                for column, probe in probes:
                    values[run, column] = value = probe.of(bandit)
                    if not np.isfinite(value):
                        raise InputError(f"{probe.label} is {value}: it must be finite")
        return values


def _quantity(quantity: Quantity) -> Gap | PolicyQuantity:
    if not isinstance(quantity, (Gap, PolicyQuantity)):
        raise InputError(f"{quantity!r} is no quantity of a network's training run")
    return quantity


def _runs(engine: str = "autograd") -> ModuleType:
    """The module that runs these cells, looked up by the engine's name: it needs torch."""
    return import_module(f".{_RUNNERS[engine]}", __package__)


def _in_memory(function: Any, training: NetworkTraining, *arguments: Any) -> Any:
    try:
        return function(training, *arguments)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, OutOfMemory) or not out_of_memory(error):
            raise
        raise OutOfMemory(min(training.chunk or training.block, training.block)) from None
