"""Laws that hold for every engine on every cell of gradients, so that a new engine is one line.

An engine is compared with ``reference``, whose numbers are loops that can be read, and with what
enumeration finds. Numbers are allowed ``relative`` of themselves and ``floor`` of the greatest that
one output could make of them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from tests.support.estimators import EACH
from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    MomentSums,
    Projection,
    SquaredError,
    SquaredProjection,
)

FAR = 2**40 + 3
LAST = 2**63
"""Replications' numbers end here."""

DESIGNS = ("iid", "fixed", "without-replacement")

ESTIMATORS = [
    *(e for e in EACH if e.record.of_prompt or (e.record.kernel and not e.record.standardised)),
    Estimator("constant", constant=-1.5),
]
"""Those that every engine knows, the compiled ones too."""


def errors_of(*names: str) -> list[SquaredError]:
    """The squared errors of these estimators."""
    return [SquaredError(Estimator(name)) for name in names]


def quantities_for(size: int) -> list[Any]:
    """Every quantity of every estimator that a group of that size allows."""
    usable = [e for e in ESTIMATORS if size >= e.record.least_group]
    last = usable[-1]
    return [
        *(SquaredError(e) for e in usable),
        *(Distance(e, last) for e in usable[:-1]),
        *(Projection(e, 1) for e in usable),
        *(SquaredProjection(e, 2) for e in usable),
    ]


def plain_quantities(size: int) -> list[Any]:
    """What the bodies for one prompt take: no norms, no projections."""
    usable = [
        e
        for e in ESTIMATORS
        if "squared_norms" not in e.record.needs and size >= e.record.least_group
    ]
    return [*map(SquaredError, usable), *(Distance(usable[0], e) for e in usable[1:])]


def scale_of(problem: Any, quantities: Sequence[Any]) -> Any:
    """The greatest of each quantity that one output could make, 1 where no score moves.

    A projection scales with a gradient, the others with its square.
    """
    norm = np.sqrt(problem.policy.squared_norms.max())
    most = float(norm * max(np.abs(problem.outcomes.rewards).max(), 1.5)) or 1.0
    return most ** np.array([1 if isinstance(q, Projection) else 2 for q in quantities])


def cells(problem: Any, sizes: Any, batches: Any) -> Iterator[GradientCell]:
    """All cells of those sizes that the designs allow; fixed brings its own batch size."""
    even = problem.restrict(range(problem.contexts), uniform=True)
    for size in sizes:
        for batch in batches:
            yield GradientCell(problem, size, batch)
            if batch <= problem.contexts:
                yield GradientCell(even, size, batch, "without-replacement")
            if batch == problem.contexts:
                yield GradientCell(even, size, batch, "fixed")


@dataclass(frozen=True)
class Subject:
    """An engine under test, and what its rounding may be."""

    name: str
    relative: float = 0.0
    floor: float = 1e-12

    def measure(self, cell: GradientCell, quantities: Sequence[Any], **where: int) -> MomentSums:
        """What the engine measures on a cell."""
        return cell.measure(self.name, quantities, **where)


SUBJECTS = {
    "reference": Subject("reference"),
    "cpu": Subject("cpu"),
}
if find_spec("torch") is not None:
    SUBJECTS["autograd"] = Subject("autograd", 1e-9, 1e-13)

COMPARED = [name for name in SUBJECTS if name != "reference"]


def same_sums(
    found: MomentSums, plain: MomentSums, cell: GradientCell, quantities: Sequence[Any],
    relative: float = 0.0, floor: float = 1e-12,
) -> None:  # fmt: skip
    """Means and products, to rounding."""
    scale = scale_of(cell.problem, quantities)
    assert found.n == plain.n
    off = np.abs(found.mean - plain.mean) / (relative * np.abs(plain.mean) + floor * scale)
    assert off.max() < 1, (cell.name, quantities[off.argmax()].label, off.max())
    spread = np.sqrt(np.diagonal(plain.products))
    allowed = relative * np.outer(spread, spread) + floor * plain.n * np.outer(scale, scale)
    off = np.abs(found.products - plain.products) / allowed
    assert off.max() < 1, (cell.name, off.max())
    if relative == 0:
        assert np.array_equal(found.products, found.products.T)


def same_numbers(
    subject: Subject, cell: GradientCell, quantities: Sequence[Any] | None = None, *,
    seed: int = 3, first: int = FAR, replications: int = 40,
) -> None:  # fmt: skip
    """The reference engine's sums of a block."""
    quantities = quantities or quantities_for(cell.group_size)
    where = {"seed": seed, "first": first, "replications": replications}
    plain = cell.measure("reference", quantities, **where)
    result = subject.measure(cell, quantities, **where)
    same_sums(result, plain, cell, quantities, subject.relative, subject.floor)


def blocks_merge(subject: Subject, cell: GradientCell, replications: int) -> None:
    """Parts of a block are the block, wherever it is cut and wherever it lies."""
    quantities = quantities_for(cell.group_size)
    for begin in (FAR, LAST - replications):
        whole = subject.measure(cell, quantities, seed=1, first=begin, replications=replications)
        merged: MomentSums | None = None
        cuts = (0, 1, replications // 3, replications - 1, replications)
        for start, stop in pairwise(cuts):
            part = subject.measure(
                cell, quantities, seed=1, first=begin + start, replications=stop - start
            )
            merged = part if merged is None else merged.merge(part)
        assert merged is not None
        same_sums(merged, whole, cell, quantities, subject.relative / 100, 1e-13)


def order_does_not_matter(subject: Subject, cell: GradientCell) -> None:
    """Quantities in another order, or one alone, are the same numbers."""
    quantities = quantities_for(cell.group_size)
    order = np.random.default_rng(0).permutation(len(quantities))
    straight = subject.measure(cell, quantities, replications=50)
    mixed = subject.measure(cell, [quantities[i] for i in order], replications=50)
    assert np.allclose(mixed.mean, straight.mean[order], rtol=1e-12, atol=1e-15)
    products = straight.products[np.ix_(order, order)]
    assert np.allclose(mixed.products, products, rtol=1e-10, atol=1e-14)
    for i in (0, 7, 15, 30):
        alone = subject.measure(cell, [quantities[i]], replications=50)
        assert np.allclose(alone.mean[0], straight.mean[i], rtol=1e-11, atol=1e-15)


def same_seed_same_bytes(subject: Subject, cell: GradientCell) -> None:
    """A block drawn again is equal to the last bit; another seed draws another."""
    quantities = quantities_for(cell.group_size)
    one, again, other = (
        subject.measure(cell, quantities, seed=seed, replications=30) for seed in (2, 2, 3)
    )
    assert one.mean.tobytes() == again.mean.tobytes()
    assert one.products.tobytes() == again.products.tobytes()
    assert (one.mean != other.mean).any()


def threads_serve_blocks(subject: Subject, cell: GradientCell) -> None:
    """Blocks measured at the same time are those measured one after the other."""
    quantities = quantities_for(cell.group_size)

    def block(first: int) -> bytes:
        result = subject.measure(cell, quantities, first=first, replications=25)
        return result.mean.tobytes() + result.products.tobytes()

    the_same_at_once(block)


def the_same_at_once(block: Callable[[int], bytes]) -> None:
    """Blocks of 25 are to the last bit the same in four threads."""
    starts = range(0, 100, 25)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(block, starts)) == list(map(block, starts))


def finds_the_truth(cell: GradientCell, replications: int) -> None:
    """What enumeration finds, within five standard errors."""
    quantities = quantities_for(cell.group_size)
    truth = cell.measure("exact", quantities).mean
    result = cell.measure("reference", quantities, seed=11, replications=replications)
    error = np.sqrt(np.diagonal(result.covariance) / replications)
    off = np.abs(result.mean - truth) / (5 * error + 1e-13 * scale_of(cell.problem, quantities))
    assert off.max() < 1, (quantities[off.argmax()].label, off.max())
