"""Figure 4 on an external language model, in three strengths: with zero, two or eight worked examples.

A strength is one task with that number of examples before each question. Its prompts are given, and results
are about these. The formulas of errors are compared with groups of the same rollouts, see
:mod:`.real_cells`. A pool of other rollouts tells which of two errors is larger, and by how much, with an
interval that leaves rollouts out. One pool in a hundred misses a number, which no number of groups
can correct, so an order is wrong that often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ustat_pg.llm.pool.estimates import curves as errors_of
from ustat_pg.llm.pool.estimates import prompt_moments
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.validation import Array, InputError

from ..evidence import Check, Linear, Point, Ratio, Statement, equal, positive
from ..problems import Entry, Suite
from .cells import BASELINES, drawn, pooled
from .passes import Source, require_packed, task_of
from .real_cells import GroupCell
from .studies import CURVE_SIZES

TASK = "smollm2:sums-{shots}"
"""Sums of two digits, in plain text after worked examples."""

NO_SECOND = "no second-order term"
SQUARE = "G^2 for G(G-1)"
TWICE = "phi twice"
NO_CRITIC = "E|s|^2 z^2 for tau in grpo's error"
FIRST_ORDER = "excess of order 1/G"
FLAT = "more rollouts gain nothing"
READING = "vanilla above grpo above the oracle at every G"
PLAIN = "G/(G-1) for the ratio to the oracle"

FIGURE = "gradient_mse_lm_real"

CURVES = (*BASELINES, "minimum-variance")
"""The baselines of its points."""

PARTS = 32
"""The number of parts of a pool's rollouts; each is left out once."""

ROLLOUTS = 32
"""Rollouts at a prompt of a replication, or two groups of the largest size. The noise of measured minus
predicted is inversely proportional to them, and equal answers are differentiated once."""

VALUES = 6
"""Rollouts from which an oracle of a replication estimates V; there are two such samples."""

ERRORS = 0.01
"""The rate at which a pool's interval misses the number, which more groups cannot reduce."""

_SEED = 7_000_003
"""The offset of the seed for the pools that give predictions."""


@dataclass(frozen=True)
class Size:
    """The extent of the checks.

    Arguments:
        group_sizes: sizes of the groups of a replication, increasing, by a strength's worked examples.
        prompts, rollouts: sizes of each strength's pool.
        margin: the relative precision of an error, if no rival needs a higher one.
        clear: the least relative difference of two errors at which their order is tested.
        plain: whether the ratio to the oracle is compared with G/(G-1).
        closely: whether the order in G of grpo's excess over the oracle is tested.
    """

    group_sizes: Mapping[int, tuple[int, ...]]
    prompts: int
    rollouts: int
    margin: float
    clear: float
    plain: bool = True
    closely: bool = False


FULL = Size(dict.fromkeys((0, 2, 8), (2, 4, 8, 16)), 24, 128, 0.2, 0.2, closely=True)

SIZES = {
    "smoke": Size({2: (2,)}, 4, 64, 0.5, 0.2, plain=False),
    # Most groups of the weakest have equal rewards, and the strongest's prompts are long. Larger groups of
    # these would take an hour, and so would the order of errors that are closer to each other.
    "quick": Size({0: (2,), 2: (2, 8), 8: (2,)}, 4, 96, 0.3, 0.4),
    "full": FULL,
    "card": FULL,
}


@dataclass(frozen=True, eq=False)
class Strength:
    """One task's pool, its predictions, and the cell that measures them."""

    name: str
    task: str
    pool: ScoredPool
    cell: GroupCell
    how: Size

    def known(self, number: Callable[[ScoredPool], float]) -> tuple[float, float]:
        """A number from the pool, and half its interval at these prompts."""
        values, half = self.all_known(number)
        return float(values), float(half)

    def all_known(self, numbers: Callable[[ScoredPool], Any]) -> tuple[Array, Array]:
        """Numbers from the pool, and half their intervals at these prompts, by leaving parts out."""
        rollouts = np.arange(self.pool.rollouts)
        parts = [
            numbers(self.pool.select_rollouts(np.flatnonzero(rollouts % PARTS != part)))
            for part in range(PARTS)
        ]
        errors = np.std(parts, axis=0) * (PARTS - 1) ** 0.5
        return np.asarray(numbers(self.pool)), student.isf(ERRORS / 2, PARTS - 1) * errors

    def curve(self, group_sizes: Sequence[int]) -> pd.DataFrame:
        """The errors that figures show, with their precision at these prompts."""

        def errors(pool: ScoredPool) -> pd.DataFrame:
            return errors_of(pool, group_sizes, CURVES)

        values, half = self.all_known(lambda pool: errors(pool)["mse"])
        return errors(self.pool).assign(low=values - half, high=values + half)

    def error(self, group_size: int, **weights: float) -> Callable[[ScoredPool], float]:
        """A sum of the baselines' mean errors over the prompts, from a pool."""

        def of(pool: ScoredPool) -> float:
            errors = errors_of(pool, [group_size], list(weights))["mse"]
            return float(np.dot(errors, list(weights.values())))

        return of

    def measured(self, group_size: int, times: float = 1.0, **weights: float) -> Linear:
        """A multiple of the same sum, from groups."""
        terms = [
            (drawn(self.task, name, group_size), times * weight) for name, weight in weights.items()
        ]
        return Linear(self.cell, tuple(terms))

    def agrees(
        self,
        group_size: int,
        weights: Mapping[str, float],
        value: float,
        rivals: Mapping[str, float],
    ) -> Check:
        """A check that a sum of errors from groups equals the formulas' value on the same rollouts.

        Arguments:
            group_size: G.
            weights: weights in the sum, by baseline.
            value: the sum from the pool; rounding is relative to it.
            rivals: the ratio by wrong formulas, divided by that of the true one.
        """
        measured, formula = (
            Linear(self.cell, tuple((of(self.task, n, group_size), w) for n, w in weights.items()))
            for of in (drawn, pooled)
        )
        statement = equal(1.0, rivals, relative_margin=self.how.margin)
        what = f"G={group_size}: {' less '.join(weights)}, over predicted"
        return self.check(what, Ratio(measured, formula, value), statement)

    def check(self, what: str, functional: Linear | Ratio, statement: Statement) -> Check:
        return Entry(self.name, "real", self).check(what, functional, statement)


def strengths(suite: Suite) -> list[Strength]:
    """The strengths of a suite's model, weakest first, with their pools."""
    folder = None if suite.folder is None else suite.folder.resolve()
    assert suite.model is not None, "a suite of the models that ship has none"
    return _strengths(suite.model, suite.size, suite.seed, suite.device, folder)


@cache
def _strengths(name: str, size: str, seed: int, device: str, folder: Path | None) -> list[Strength]:
    from ustat_pg.llm.models.loading import load_model, tokenise, weights_digest
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.scores.scoring import score_pool

    how, model = SIZES[size], load_model(name, device=device, dtype="float32")
    weights = weights_digest(model.model)
    made = []
    for shots, group_sizes in how.group_sizes.items():
        text = TASK.format(shots=shots)
        task = task_of(text, how.prompts)
        require_packed(model, task)
        out = None if folder is None else folder / f"{Path(name).name}-{shots}-{size}-{seed}"
        store = None if out is None else out / "rollouts.jsonl"
        rollouts = sample(model, task, how.rollouts, seed=_SEED + seed, store=store)
        pool = score_pool(model, rollouts, out=out, config={"task": task.name, "seed": seed})
        length = float(np.mean([len(tokenise(model, prompt)) for prompt in task.prompts]))
        count = max(ROLLOUTS, 2 * group_sizes[-1])
        source = Source(name, weights, text, how.prompts, group_sizes, count, VALUES)
        cell = GroupCell(source, length, None if out is None else out / "replications")
        made.append(Strength(f"{shots} examples", text, pool, cell, how))
    return made


def _agree(one: Strength) -> Iterator[Check]:
    """Measured errors divided by those of the formulas: 1, with rivals for every model. An error that the
    pool cannot distinguish from 0 is not tested.
    """
    least = one.cell.group_sizes[0]
    asked = [(size, {name: 1.0}) for size in one.cell.group_sizes for name in BASELINES]
    for size, weights in (*asked, (least, {"grpo": 1.0, "oracle": -1.0})):
        value, half = one.known(one.error(size, **weights))
        if value > half:
            rivals = _wrong(one, size, value) if "grpo" in weights and size == least else {}
            yield one.agrees(size, weights, value, rivals)


def _wrong(one: Strength, size: int, value: float) -> dict[str, float]:
    """The rivals' values of grpo's error, or of its excess over the oracle's, divided by the true value."""
    vanilla, grpo, oracle = (one.error(size, **{name: 1.0})(one.pool) for name in BASELINES)
    second = prompt_moments(one.pool).variance_trace.mean() / (size * (size - 1))
    more = {
        NO_SECOND: oracle - grpo,
        SQUARE: (oracle - grpo) / size,
        TWICE: second,
        NO_CRITIC: vanilla - oracle,
    }
    return {name: 1 + float(part) / value for name, part in more.items()}


def _orders(one: Strength) -> Iterator[Check]:
    """Checks of which of two errors is larger, at every size where the pool decides: the paper's order, and
    grpo's and G/(G-1) times the oracle's.
    """
    for size in one.cell.group_sizes:
        plain = size / (size - 1)
        for (worse, better), times, above, below in (
            (("vanilla", "grpo"), 1.0, (), (READING,)),
            (("grpo", "oracle"), 1.0, (NO_SECOND,), ()),
            (("grpo", "oracle"), plain, (PLAIN,), (PLAIN,)),
        )[: 3 if one.how.plain else 2]:
            value, half = one.known(one.error(size, **{worse: 1.0, better: -times}))
            sign = 1.0 if value > 0 else -1.0
            top = one.error(size, **{worse: 1.0})(one.pool)
            if top <= 0 or abs(value) <= max(one.how.clear * top, half):
                continue
            difference = one.measured(size, sign / top, **{worse: 1.0, better: -times})
            factor = f"{times:.3g} times " if times > 1 else ""
            names = (worse, f"{factor}{better}")
            larger, smaller = names if value > 0 else names[::-1]
            statement = positive(abs(value) / top, above if value > 0 else below, scale=1.0)
            yield one.check(f"G={size}: {larger} above {smaller}", difference, statement)


def _excess(one: Strength) -> Iterator[Check]:
    """grpo's excess over the oracle at the largest group, divided by that at the smallest."""
    least, most = one.cell.group_sizes[0], one.cell.group_sizes[-1]
    apart = {"grpo": 1.0, "oracle": -1.0}
    excess, half = one.known(one.error(least, **apart))
    if excess <= half:
        return
    low, high = (one.measured(size, **apart) for size in (least, most))
    predicted, first = least * (least - 1) / (most * (most - 1)), least / most
    ratio = Ratio(high, low, excess)
    # This is nearly half of the gap to the rival.
    statement = equal(predicted, {FIRST_ORDER: first}, scale=first, relative_margin=0.4)
    yield one.check(f": grpo's excess at G={most} over that at G={least}", ratio, statement)


def _falls(one: Strength) -> Iterator[Check]:
    """Checks that grpo's error falls with the group size."""
    sizes = one.cell.group_sizes[0], one.cell.group_sizes[-1]
    at_least, at_most = (one.error(size, grpo=1.0) for size in sizes)
    fall, half = one.known(lambda pool: at_least(pool) - at_most(pool))
    high = at_least(one.pool)
    if high <= 0 or fall <= half:
        return
    terms = [
        (drawn(one.task, "grpo", size), sign / high)
        for size, sign in zip(sizes, (1.0, -1.0), strict=True)
    ]
    statement = positive(fall / high, (FLAT,), scale=1.0)
    what = f": grpo, G={sizes[0]} less G={sizes[1]}"
    yield one.check(what, Linear(one.cell, tuple(terms)), statement)


def checks(suite: Suite) -> list[Check]:
    """Comparisons of the formulas with groups, and every order that the pool predicts."""
    made = [check for one in strengths(suite) for check in _of(one)]
    if not made:
        raise InputError(
            f"the pools of {suite.model} tell no error from 0: its answers to these prompts are nearly all "
            "right, or nearly all wrong"
        )
    return made


def _of(one: Strength) -> Iterator[Check]:
    yield from _agree(one)
    yield from _orders(one)
    if len(one.cell.group_sizes) > 1:
        yield from _falls(one)
    if one.how.closely:
        yield from _excess(one)


def curves(suite: Suite) -> Iterator[Point]:
    """Figure 4, as points of this run only: the errors of each strength, from the pool and from groups."""
    for one in strengths(suite):
        sizes = [size for size in CURVE_SIZES if size <= one.pool.rollouts]
        for row in one.curve(sizes).to_dict("records"):
            size, baseline = int(row["group_size"]), str(row["estimator"])
            at = {"panel": one.name, "group_size": size}
            at |= {"pool_low": float(row["low"]), "pool_high": float(row["high"])}
            sampled = baseline in BASELINES and size in one.cell.group_sizes
            measured = one.measured(size, **{baseline: 1.0}) if sampled else None
            yield Point(FIGURE, baseline, at, float(row["mse"]), measured)
