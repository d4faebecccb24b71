"""Figure 4 on a language model that somebody else trained, in three strengths: no worked example, two, eight.

A strength is one task with so many examples before each question, and its prompts are named: what is said
is said of these. The formulas of errors are held against groups of the same rollouts, see
:mod:`.real_cells`. A pool of other rollouts says which of two errors is larger, and by how much, with an
interval of its own, by rollouts left out. One pool in a hundred misses a number, which no number of groups
makes up for: an order errs that often.
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
"""Sums of two digits, in plain text after worked ones."""

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
"""Parts of a pool's rollouts, each left out once."""

ROLLOUTS = 32
"""Rollouts at a prompt of a replication, or two groups of the largest size: the noise of measured less
predicted falls as their number, and equal answers are differentiated once."""

VALUES = 6
"""Rollouts that an oracle of a replication knows V from; there are two such samples."""

ERRORS = 0.01
"""How often a pool's interval misses the number: what no number of groups makes up for."""

_SEED = 7_000_003
"""Added to the seed of the pools that predictions come from."""


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Arguments:
        group_sizes: sizes of the groups of a replication, increasing, by a strength's worked examples.
        prompts, rollouts: sizes of each strength's pool.
        margin: share of itself to which an error is to be known, where no rival asks for more.
        clear: share of the larger of two errors by which they differ at least where their order is asked.
        plain: whether the ratio to the oracle is held against G/(G-1).
        closely: whether the order in G of grpo's excess over the oracle is asked.
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
    # Most groups of the weakest have equal rewards, and the strongest's prompts are long: larger groups of
    # these would take an hour, and so would an order of errors that are nearer to each other.
    "quick": Size({0: (2,), 2: (2, 8), 8: (2,)}, 4, 96, 0.3, 0.4),
    "full": FULL,
    "card": FULL,
}


@dataclass(frozen=True, eq=False)
class Strength:
    """One task's pool, what it predicts, and the cell that measures it."""

    name: str
    task: str
    pool: ScoredPool
    cell: GroupCell
    how: Size

    def known(self, number: Callable[[ScoredPool], float]) -> tuple[float, float]:
        """A number of the pool, and half its interval at these prompts."""
        values, half = self.all_known(number)
        return float(values), float(half)

    def all_known(self, numbers: Callable[[ScoredPool], Any]) -> tuple[Array, Array]:
        """Numbers of the pool, and half their intervals at these prompts, by rollouts left out in parts."""
        rollouts = np.arange(self.pool.rollouts)
        parts = [
            numbers(self.pool.select_rollouts(np.flatnonzero(rollouts % PARTS != part)))
            for part in range(PARTS)
        ]
        errors = np.std(parts, axis=0) * (PARTS - 1) ** 0.5
        return np.asarray(numbers(self.pool)), student.isf(ERRORS / 2, PARTS - 1) * errors

    def curve(self, group_sizes: Sequence[int]) -> pd.DataFrame:
        """The errors that figures show, with what they are known to at these prompts."""

        def errors(pool: ScoredPool) -> pd.DataFrame:
            return errors_of(pool, group_sizes, CURVES)

        values, half = self.all_known(lambda pool: errors(pool)["mse"])
        return errors(self.pool).assign(low=values - half, high=values + half)

    def error(self, group_size: int, **weights: float) -> Callable[[ScoredPool], float]:
        """A sum of the mean errors over the prompts of baselines, of a pool."""

        def of(pool: ScoredPool) -> float:
            errors = errors_of(pool, [group_size], list(weights))["mse"]
            return float(np.dot(errors, list(weights.values())))

        return of

    def measured(self, group_size: int, times: float = 1.0, **weights: float) -> Linear:
        """A multiple of the same sum, as groups have it."""
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
        """A check that a sum of errors is, as groups have it, what the formulas make of the same rollouts.

        Arguments:
            group_size: G.
            weights: those of the sum, by baseline.
            value: the sum by the pool, which rounding is relative to.
            rivals: the ratio by wrong formulas, over what the true one makes.
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
    """Measured errors over those of the formulas: 1, and by rivals whatever the model. None is asked that the
    pool does not tell from 0.
    """
    least = one.cell.group_sizes[0]
    asked = [(size, {name: 1.0}) for size in one.cell.group_sizes for name in BASELINES]
    for size, weights in (*asked, (least, {"grpo": 1.0, "oracle": -1.0})):
        value, half = one.known(one.error(size, **weights))
        if value > half:
            rivals = _wrong(one, size, value) if "grpo" in weights and size == least else {}
            yield one.agrees(size, weights, value, rivals)


def _wrong(one: Strength, size: int, value: float) -> dict[str, float]:
    """By rivals, grpo's error, or what it has more than the oracle's, over the value that it has."""
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
    """Which of two errors is larger, at every size where the pool says so: those of the paper's reading, and
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
    """grpo's excess over the oracle at the largest group, over that at the smallest."""
    least, most = one.cell.group_sizes[0], one.cell.group_sizes[-1]
    apart = {"grpo": 1.0, "oracle": -1.0}
    excess, half = one.known(one.error(least, **apart))
    if excess <= half:
        return
    low, high = (one.measured(size, **apart) for size in (least, most))
    predicted, first = least * (least - 1) / (most * (most - 1)), least / most
    ratio = Ratio(high, low, excess)
    # Half of the gap to the rival, or nearly.
    statement = equal(predicted, {FIRST_ORDER: first}, scale=first, relative_margin=0.4)
    yield one.check(f": grpo's excess at G={most} over that at G={least}", ratio, statement)


def _falls(one: Strength) -> Iterator[Check]:
    """grpo's error falls with the group."""
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
    """The formulas against groups, and every order that the pool predicts."""
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
    """Figure 4, as points of the run alone: the errors of each strength, by the pool and by groups."""
    for one in strengths(suite):
        sizes = [size for size in CURVE_SIZES if size <= one.pool.rollouts]
        for row in one.curve(sizes).to_dict("records"):
            size, baseline = int(row["group_size"]), str(row["estimator"])
            at = {"panel": one.name, "group_size": size}
            at |= {"pool_low": float(row["low"]), "pool_high": float(row["high"])}
            sampled = baseline in BASELINES and size in one.cell.group_sizes
            measured = one.measured(size, **{baseline: 1.0}) if sampled else None
            yield Point(FIGURE, baseline, at, float(row["mse"]), measured)
