"""Cells of whole training runs: the quantities of the gap J* - J(θ) along the meta-algorithm.

A :class:`Training` is a problem with group and batch size, a schedule and a number of steps.
Estimators and steps belong to the quantities, so all use the same draws and
differences between them are paired.

``reference``, ``cpu`` and ``cuda`` draw the runs. ``exact`` averages over every outcome of every
step, by backward induction; it supports smooth functions of the gap and the deviation, but no distributions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ustat_pg.engines.base import (
    Cell,
    Estimator,
    InfeasibleError,
    MomentSums,
    Quantity,
    Replications,
)
from ustat_pg.files.digests import digest
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.rounding import GIVEN
from ustat_pg.validation import Array, InputError, integer

from ...interior_problems.interior import InteriorProblem
from .regions import Ball
from .schedules import Schedule
from .trajectory import TRAJECTORY_ENGINES, Trajectory

BINS = 2048
"""The number of bins of a histogram, which have equal widths."""

_BLOCK_WORK = 2**23
"""The approximate number of outputs in one block, which takes about an eighth of a second."""

_DEVICE_BLOCK = 2**18
"""The most runs in a block on a device: the largest ones run no more at once."""

_RELATIVE = 1e-5
"""The requested error of an expectation by backward induction, as a share of its value."""

_OF_DEVIATIONS = {"product": 3e-4, "cosine": 1e-3}
"""The same for functions of the deviation, which need more grid points than functions of the gap."""

_OF_PRODUCTS = 1e-6
"""The allowed error of products, as a share of the greatest possible product."""

_ABSOLUTE = 1e-6
"""The requested error of a small value, as a share of the greatest possible value."""


@dataclass(frozen=True)
class _OfRuns:
    """A quantity of the runs of an estimator, at a step."""

    kind: ClassVar[str]
    estimator: Estimator
    step: int

    @property
    def label(self) -> str:
        """The name in blocks and stored results: the kind, and all fields in order."""
        _, _, *rest = (getattr(self, field.name) for field in fields(self))
        words = (repr(list(field) if isinstance(field, tuple) else field) for field in rest)
        return f"{self.kind}[{','.join([self.estimator.label, str(self.step), *words])}]"


@dataclass(frozen=True)
class Gap(_OfRuns):
    """scale · (J* - J(θₜ)) of the runs of an estimator, at a step."""

    kind = "gap"
    scale: float = 1.0

    def of(self, gap: Array) -> Array:
        """The quantity of a gap."""
        return self.scale * gap


@dataclass(frozen=True)
class GapTransform(_OfRuns):
    """exp(-rate · (J* - J(θₜ))), whose mean is the Laplace transform of the gap's law: a smooth and
    bounded function, which distinguishes two laws without sampling.
    """

    kind = "transform"
    rate: float

    def of(self, gap: Array) -> Array:
        return np.asarray(np.exp(-self.rate * gap))


@dataclass(frozen=True)
class Binned(_OfRuns):
    """A number from 0 to 1 with a histogram: a probability integral transform of the gap."""

    def of(self, gap: Array, theta: Array) -> Array:
        """The quantity of gaps (R,) at parameters (R, d)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Coordinate(_OfRuns):
    """θₜⱼ, with j the coordinate: the position of a run at a step."""

    kind = "coordinate"
    coordinate: int

    def of(self, gap: Array, theta: Array) -> Array:
        return theta[:, self.coordinate]


@dataclass(frozen=True)
class Product(_OfRuns):
    """scale · δⱼ δₖ, δ = Uᵀ(θₜ - θ*): an entry of the second moments in the identifiable directions."""

    kind = "product"
    first: int
    second: int
    scale: float = 1.0

    @property
    def directions(self) -> int:
        """The required number of identifiable directions."""
        return 1 + max(self.first, self.second)

    def of(self, deviation: Array) -> Array:
        """The quantity of deviations (R, r)."""
        return np.asarray(self.scale * deviation[:, self.first] * deviation[:, self.second])

    def range(self, radius: float) -> tuple[float, float]:
        """The ends of the range within a distance of θ*."""
        most = self.scale * radius**2
        return (0.0, most) if self.first == self.second else (-most / 2, most / 2)


@dataclass(frozen=True)
class Cosine(_OfRuns):
    """cos⟨k, δ⟩, δ = Uᵀ(θₜ - θ*), whose mean is the real part of δ's characteristic function.

    It is exp(-½ kᵀΓk) if δ is normal with covariance Γ; several frequencies k determine all of Γ.
    """

    kind = "cosine"
    frequency: tuple[float, ...]

    @property
    def directions(self) -> int:
        return len(self.frequency)

    def of(self, deviation: Array) -> Array:
        # This sums in a fixed order, because a matrix product's order depends on its size.
        return np.cos(sum(k * deviation[:, j] for j, k in enumerate(self.frequency)))

    def range(self, radius: float) -> tuple[float, float]:
        return -1.0, 1.0


@dataclass(frozen=True)
class Away(_OfRuns):
    """Whether a run is far from the optimum, ‖Uᵀ(θₜ - θ*)‖ >= distance: 1 or 0, with a share as its mean.

    If Θ is a ball and the distance is its radius, it marks runs stopped at the edge in that step.
    """

    kind = "away"
    directions: ClassVar[int] = 1
    distance: float

    def of(self, deviation: Array) -> Array:
        # A projection puts runs on the edge up to rounding.
        return np.asarray(
            np.sqrt((deviation**2).sum(axis=-1)) >= self.distance * (1 - GIVEN), dtype=np.float64
        )

    def range(self, radius: float) -> tuple[float, float]:
        return 0.0, 1.0


OfDeviation = Product | Cosine | Away

TrainingQuantity = Gap | GapTransform | Binned | Coordinate | Product | Cosine | Away
"""Quantities of a bandit's runs."""


@dataclass(frozen=True, eq=False)
class Training(Cell):
    """A cell of whole training runs. Cells with equal definitions are equal.

    Arguments:
        landscape: the problem, with an interior optimum.
        steps: T, the last step that a quantity may use.
        start: θ₀; by default the maximiser.
        group_size, schedule, batch_size, design, start_scale, projection: those of
            :class:`~simulations.engines.runs.trajectory.Trajectory`.
    """

    landscape: InteriorProblem
    group_size: int
    steps: int
    schedule: Schedule
    batch_size: int = 1
    design: str = "iid"
    start: ArrayLike | None = None
    start_scale: ArrayLike = 0.0
    projection: Ball | None = None
    _example: Trajectory = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # This refuses values that no trajectory allows; vanilla fits every group size.
        example = self.trajectory(Estimator("vanilla"), (self.steps,))
        object.__setattr__(self, "_example", example)

    @cached_property
    def _enumerable(self) -> dict[Estimator, int]:
        """The number of different outcomes of a step, by estimator, if its runs have exact means."""
        return {}

    @cached_property
    def problem(self) -> SoftmaxBandit:
        """The bandit at the maximiser."""
        return self.landscape.at(self.landscape.maximiser)

    def trajectory(self, estimator: Estimator, snapshots: Sequence[int]) -> Trajectory:
        """The runs of one estimator."""
        return Trajectory(
            *(self.problem, self.group_size, self.steps, self.schedule, estimator),
            batch_size=self.batch_size,
            design=self.design,
            start=self.landscape.maximiser if self.start is None else self.start,
            start_scale=self.start_scale,
            projection=self.projection,
            snapshots=snapshots,
        )

    @cached_property
    def name(self) -> str:
        apart = ("name", "estimator", "snapshots")
        rest = {key: v for key, v in self._example.description.items() if key not in apart}
        return f"{self._example.name}/{digest(json.dumps(rest, sort_keys=True))}"

    @property
    def block(self) -> int:
        """The number of runs in a block: a power of 2 that takes about an eighth of a second."""
        return int(2 ** np.clip(np.floor(np.log2(_BLOCK_WORK / self.outputs)), 8, 16))

    @property
    def device_block(self) -> int:
        return _DEVICE_BLOCK

    @property
    def largest_gap(self) -> float:
        """The greatest gap that a run can have, or an upper bound.

        It is at most J* minus the least mean reward.
        """
        least = self.problem.context_probs @ self.problem.mean_rewards.min(axis=1)
        everywhere = self.landscape.maximum - float(least)
        return min(_largest_gap(self.landscape, self.projection), everywhere)

    engines = ("exact", *TRAJECTORY_ENGINES)
    measures = (Gap, GapTransform, Binned, Coordinate, Product, Cosine, Away)
    settles = False

    def range(self, quantity: Quantity) -> tuple[float, float]:
        if isinstance(quantity, OfDeviation):
            return quantity.range(self._reach)
        if isinstance(quantity, Coordinate):
            return self._coordinate_range(quantity.coordinate)
        return (0.0, quantity.scale * self.largest_gap) if isinstance(quantity, Gap) else (0.0, 1.0)

    @cached_property
    def _reach(self) -> float:
        """The largest distance of Uᵀθ from Uᵀθ* in Θ; infinite unless Θ is a ball in these directions."""
        theta_set, basis = self.projection, self.landscape.identifiable
        if theta_set is None or not _spans(theta_set, basis):
            return float("inf")
        off = (theta_set.centre - self.landscape.maximiser) @ basis
        return theta_set.radius + float(np.linalg.norm(off))

    def _coordinate_range(self, j: int) -> tuple[float, float]:
        """The ends of Θ in the direction of a parameter; infinite if it is free."""
        theta_set = self.projection
        basis = None if theta_set is None else theta_set.basis
        if theta_set is None or (basis is not None and (basis[j] ** 2).sum() < 1 - GIVEN):
            return -np.inf, np.inf
        centre = float(theta_set.centre[j])
        return centre - theta_set.radius, centre + theta_set.radius

    def rounding(self, quantity: Quantity) -> float:
        shares = {Gap: _ABSOLUTE, Product: _OF_PRODUCTS, Cosine: _OF_DEVIATIONS["cosine"]}
        share = shares.get(type(quantity), _RELATIVE)
        return float(share * np.abs(self.range(quantity)).max())

    def require_quantity(self, quantity: Quantity) -> None:
        """Refuse unknown quantities, steps that the runs do not take, and directions that do not exist."""
        super().require_quantity(quantity)
        assert isinstance(quantity, TrainingQuantity)
        if integer("step", quantity.step, 0) > self.steps:
            raise InputError(f"step is {quantity.step}: the runs take {self.steps}")
        d, rank = self.landscape.d, self.landscape.identifiable.shape[1]
        if isinstance(quantity, OfDeviation) and quantity.directions > rank:
            raise InputError(
                f"{quantity.label} asks for {quantity.directions} identifiable directions: there "
                f"are {rank}"
            )
        if isinstance(quantity, Coordinate) and quantity.coordinate >= d:
            raise InputError(f"coordinate is {quantity.coordinate}: there are {d} parameters")

    def require_exact(self, quantities: Sequence[Quantity]) -> None:
        from . import exact as trajectory_exact

        self.require_quantities(quantities)
        for quantity in quantities:
            assert isinstance(quantity, TrainingQuantity)
            if isinstance(quantity, (Binned, Away)):
                raise InfeasibleError(
                    "distributions and shares of runs are compared by simulation; the means of a gap, of "
                    "its Laplace transform, of a parameter and of products of deviations are enumerated"
                )
            if not np.isfinite(self.range(quantity)).all():
                raise InfeasibleError("a parameter's mean is enumerated within a bounded set only")
            runs = self.trajectory(quantity.estimator, (quantity.step,))
            # Each check enumerates a minibatch; its answer is the same at every step.
            if quantity.estimator not in self._enumerable:
                self._enumerable[quantity.estimator] = trajectory_exact.require_enumerable(
                    self.landscape, runs
                )

    def effort(self, quantities: Sequence[Quantity]) -> float:
        from .exact import effort

        self.require_exact(quantities)
        asked: Sequence[Any] = quantities
        directions, total = self.landscape.identifiable.shape[1], 0.0
        for estimator in dict.fromkeys(quantity.estimator for quantity in asked):
            steps = [quantity.step for quantity in asked if quantity.estimator == estimator]
            total += effort(self._enumerable[estimator], directions, len(steps), set(steps))
        return total

    def _measure(
        self, engine: str, quantities: Sequence[TrainingQuantity], block: Replications
    ) -> MomentSums:
        columns: dict[Estimator, list[int]] = {}
        for column, quantity in enumerate(quantities):
            columns.setdefault(quantity.estimator, []).append(column)
        if engine == "exact":
            return MomentSums.exact(self._expected(quantities, columns))
        values = np.empty((block.count, len(quantities)))
        for estimator, wanted in columns.items():
            steps = sorted({quantities[column].step for column in wanted})
            theta = self.trajectory(estimator, steps).run(
                engine,
                seed=block.seed,
                first=block.first,
                replications=block.count,
                whole=block.whole,
            )
            gaps, deviations = self.landscape.gap(theta), self._deviations(theta)
            for column in wanted:
                quantity = quantities[column]
                place = steps.index(quantity.step)
                if isinstance(quantity, (Gap, GapTransform)):
                    values[:, column] = quantity.of(gaps[:, place])
                elif isinstance(quantity, OfDeviation):
                    values[:, column] = quantity.of(deviations[:, place])
                else:
                    values[:, column] = quantity.of(gaps[:, place], theta[:, place])
        counts = {
            quantity.label: np.histogram(values[:, column], bins=BINS, range=(0, 1))[0]
            for column, quantity in enumerate(quantities)
            if isinstance(quantity, Binned)
        }
        sums = MomentSums.of(values)
        return MomentSums(sums.n, sums.mean, sums.products, counts)

    def _deviations(self, theta: Array) -> Array:
        """Uᵀ(θ - θ*) of parameters (..., d), summed in a fixed order, (..., r)."""
        off, basis = theta - self.landscape.maximiser, self.landscape.identifiable
        return np.asarray((off[..., :, None] * basis).cumsum(axis=-2)[..., -1, :])

    def _expected(
        self, quantities: Sequence[TrainingQuantity], columns: dict[Estimator, list[int]]
    ) -> Array:
        """The quantities' means, by backward induction."""
        from .exact import expectations

        means = np.empty(len(quantities))
        for estimator, wanted in columns.items():
            part = {column: quantities[column] for column in wanted}
            steps = sorted({quantity.step for quantity in part.values()})
            of_gaps = {c: q.of for c, q in part.items() if isinstance(q, (Gap, GapTransform))}
            places = {c: q.coordinate for c, q in part.items() if isinstance(q, Coordinate)}
            of_deviations = {c: q.of for c, q in part.items() if isinstance(q, OfDeviation)}
            # One backward pass computes all steps and functions.
            mean = expectations(
                self.landscape,
                self.trajectory(estimator, steps[-1:]),
                list(of_gaps.values()),
                steps,
                coordinates=list(places.values()),
                of_deviations=list(of_deviations.values()),
                relative=min(_OF_DEVIATIONS.get(q.kind, _RELATIVE) for q in part.values()),
            )
            for row, column in enumerate([*of_gaps, *places, *of_deviations]):
                at = row, steps.index(quantities[column].step)
                # An expectation that is uncertain on the finest grid becomes NaN, so no verdict uses it.
                sure = mean.error[at] <= self.rounding(quantities[column])
                means[column] = mean.values[at] if sure else np.nan
        return means


@dataclass(frozen=True, eq=False)
class OneRun(Training):
    """A cell of a single run, for a figure that draws its path.

    Arguments:
        number: added to the seed, so that runs of one problem differ in their draws.
    """

    number: int = 0

    block = 1

    @cached_property
    def name(self) -> str:
        return f"{super().name}/run{integer('number', self.number, 0)}"

    def shown(self, blocks: float) -> float:
        return 1

    def _measure(
        self, engine: str, quantities: Sequence[TrainingQuantity], block: Replications
    ) -> MomentSums:
        """The run, as :class:`Training` draws it from the seed plus the number."""
        return super()._measure(engine, quantities, replace(block, seed=block.seed + self.number))


def _spans(ball: Ball, basis: Array) -> bool:
    """Whether a ball bounds all these directions (d, r)."""
    axes = np.eye(ball.d) if ball.basis is None else ball.basis
    return np.allclose(axes @ (axes.T @ basis), basis, rtol=0, atol=GIVEN)


@lru_cache(maxsize=64)
def _largest_gap(landscape: InteriorProblem, theta_set: Ball | None) -> float:
    """The greatest gap in Θ, or an upper bound: infinity if none is known.

    On a ball around the maximiser in the identifiable directions it is computed on a grid, and
    made 1% larger for points between the grid points.
    """
    basis = landscape.identifiable
    rank = basis.shape[1]
    if theta_set is None or rank > 2 or not _spans(theta_set, basis):
        return np.inf
    radii = np.linspace(0, theta_set.radius, 65)
    if rank == 1:
        points = np.concatenate([-radii, radii])[:, None]
    else:
        angle = np.linspace(0, 2 * np.pi, 65)
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        points = (radii[:, None, None] * circle).reshape(-1, 2)
    return 1.01 * float(landscape.gap(theta_set.centre + points @ basis.T).max())
