"""The comparison of estimators by their errors on one problem at several group sizes, as a tidy frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from math import nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .engines import (
    Estimator,
    GradientCell,
    InfeasibleError,
    MomentSums,
    SquaredError,
    enumerate_mean,
    enumerate_mse,
    enumerate_turns,
)
from .estimators import TURN_SCHEMES
from .moments.episodes import Episodes
from .predictions import turn_mean
from .problems import EpisodeProblem, SoftmaxBandit, load_episodes, load_problem
from .rounding import DERIVED
from .testing.function import UnderTest, Violation, whole_numbers
from .validation import InputError, integer

if TYPE_CHECKING:
    import pandas as pd

Given = str | Estimator | Callable[..., Any]


@dataclass(frozen=True)
class _Row:
    """A mean squared error, E ĝ if it is known, and the draws (None if the error is enumerated)."""

    mse: float
    standard_error: float
    mean: np.ndarray | None
    sums: MomentSums | None = None
    place: int = 0

    def over(self, first: _Row) -> tuple[float, float]:
        """The ratio to another error, with its standard error; errors on shared draws are paired."""
        if first.mse == 0:
            return nan, nan
        ratio, variance = self.mse / first.mse, self.standard_error**2
        if self.sums is not None and self.sums is first.sums:
            covariance, one, two = self.sums.covariance / self.sums.n, self.place, first.place
            variance += ratio**2 * covariance[two, two] - 2 * ratio * covariance[one, two]
        else:
            variance += (ratio * first.standard_error) ** 2
        return ratio, sqrt(max(variance, 0.0)) / first.mse


def compare(
    problem: SoftmaxBandit | Mapping[str, Any] | str | Path,
    estimators: Sequence[Given] | Mapping[str, Given],
    group_sizes: int | Iterable[int],
    *,
    batch_size: int = 1,
    design: str = "iid",
    replications: int = 2**16,
    seed: int = 0,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    memory: int = 0,
) -> pd.DataFrame:
    """The MSE E‖ĝ - g‖² of estimators on a problem, with a row for each estimator and group size.

    If there are few enough outcomes, all are enumerated and the standard error is 0. If not, all estimators
    are measured on the same draws.

    Arguments:
        problem: a problem, as for :func:`~ustat_pg.problems.load_problem`.
        estimators: names that engines know (``"grpo"``, ``"bayes:1,1"``), advantage functions, or
            :class:`~ustat_pg.engines.Estimator` for a constant or a critic; a mapping gives them names.
        group_sizes: G, one or several.
        batch_size: B, prompts in a minibatch.
        design: way to draw the prompts of a minibatch: iid, fixed or without-replacement.
        replications: number of minibatches to draw if not all can be enumerated, at least 2.
        seed: seed of the draws.
        layout, inputs, array, memory: options for calling functions, as for
            :func:`~ustat_pg.testing.assert_unbiased`.

    Returns:
        columns estimator, group_size, batch_size, mse, standard_error, rank (1 for the least MSE at
        this group size; equal errors share the better rank), ratio (the MSE over that of the first
        estimator), ratio_error (its standard error), bias (‖E ĝ - g‖/‖g‖, to about 1e-7; NaN if there are too
        many outcomes to enumerate, or g is 0), rescaled (the MSE of ĝ/c, c = ⟨E ĝ, g⟩/‖g‖², after the
        learning rate corrects for a shrunken gradient; NaN if bias is NaN, or c <= 0), kind (exact or
        simulation) and replications.

    >>> from ustat_pg.problems import example_problem, problem_from_mapping
    >>> def half(rewards):
    ...     others = rewards.sum(-1, keepdims=True) - rewards
    ...     return rewards - others / (2 * (rewards.shape[-1] - 1))
    >>> frame = compare(problem_from_mapping(example_problem()), ["grpo", half], [2, 4])
    >>> frame[["estimator", "group_size", "mse", "rank", "ratio", "bias", "kind"]].round(4)
      estimator  group_size     mse  rank   ratio  bias   kind
    0      grpo           2  0.2000     2  1.0000   0.0  exact
    1      half           2  0.1093     1  0.5466   0.0  exact
    2      grpo           4  0.0770     2  1.0000   0.0  exact
    3      half           4  0.0611     1  0.7932   0.0  exact
    """
    import pandas as pd

    chosen = load_problem(problem)
    named = _named(estimators, layout, inputs, array, memory)
    sizes = whole_numbers("group size", group_sizes, 1)
    drawn = integer("replications", replications, 2)
    rows = []
    for size in sizes:
        cell = GradientCell(chosen, size, batch_size, design)
        for estimator in named.values():
            estimator.require_group(size)
        try:
            results = _measured(cell, named, drawn, integer("seed", seed, 0), layout == "minibatch")
        except Violation as violation:
            raise InputError(str(violation)) from None
        first = next(iter(results.values()))
        for name, row in results.items():
            ratio, error = row.over(first)
            bias, rescaled = _off(chosen, row)
            rows.append(
                {
                    "estimator": name,
                    "group_size": size,
                    "batch_size": batch_size,
                    "mse": row.mse,
                    "standard_error": row.standard_error,
                    "rank": 1
                    + sum(other.mse < row.mse * (1 - DERIVED) for other in results.values()),
                    "ratio": ratio,
                    "ratio_error": error,
                    "bias": bias,
                    "rescaled": rescaled,
                    "kind": "exact" if row.sums is None else "simulation",
                    "replications": 0 if row.sums is None else row.sums.n,
                }
            )
    return pd.DataFrame(rows)


def compare_turns(
    problem: EpisodeProblem | Episodes | Mapping[str, Any] | str | Path,
    group_sizes: int | Iterable[int],
    schemes: Sequence[str] = TURN_SCHEMES,
    *,
    discount: float = 1.0,
) -> pd.DataFrame:
    """The mean and the MSE of estimators over turns on a problem, with a row for each scheme and group size.

    Arguments:
        problem: a problem with turns, its list of episodes, its named mapping, a file, or a name after
            ``ustat:``.
        group_sizes: G, one or several.
        schemes: names in :data:`~ustat_pg.estimators.TURN_SCHEMES`.
        discount: γ of the returns, in [0, 1].

    Returns:
        columns scheme, group_size, multiple (c if E ĝ = c ∇J on this problem; else NaN), cosine (of E ĝ and
        ∇J), bias (‖E ĝ - ∇J‖/‖∇J‖; NaN if ∇J is 0), mse (E‖ĝ - ∇J‖² of one group, by enumeration; NaN if
        there are too many groups) and climbs (the objective in words).

    >>> frame = compare_turns("ustat:tool", 4, ["to-go", "summed"])
    >>> frame[["scheme", "multiple", "cosine", "bias", "mse"]].round(3)
       scheme  multiple  cosine   bias    mse
    0   to-go       1.0    1.00  0.000  0.044
    1  summed       NaN   -0.36  1.141  0.096
    """
    import pandas as pd

    listed = problem if isinstance(problem, Episodes) else load_episodes(problem).episodes
    target = float(np.linalg.norm(listed.gradient()))
    rows = []
    for size in whole_numbers("group size", group_sizes, 1):
        for scheme in schemes:
            found = turn_mean(listed, scheme, size, discount=discount)
            error = nan
            with suppress(InfeasibleError):
                error = enumerate_turns(listed, scheme, size, discount=discount).mse
            off = float(np.linalg.norm(found.mean - listed.gradient()))
            rows.append(
                {
                    "scheme": scheme,
                    "group_size": size,
                    "multiple": nan if found.multiple is None else found.multiple,
                    "cosine": nan if found.cosine is None else found.cosine,
                    "bias": (off / target if off > DERIVED * target else 0.0) if target else nan,
                    "mse": error,
                    "climbs": found.climbs,
                }
            )
    return pd.DataFrame(rows)


def _named(
    given: Sequence[Given] | Mapping[str, Given],
    layout: str,
    inputs: Sequence[str],
    array: Callable[[Any], Any] | None,
    memory: int,
) -> dict[str, Estimator]:
    """The estimators by name, in the given order."""
    if isinstance(given, str | Estimator) or callable(given):
        given = [given]
    pairs: Iterable[tuple[str | None, Given]] = (
        given.items() if isinstance(given, Mapping) else ((None, each) for each in given)
    )
    estimators: dict[str, Estimator] = {}
    for name, item in pairs:
        if isinstance(item, Estimator):
            estimator = item
        elif callable(item):
            estimator = UnderTest(item, layout, inputs, array, memory=memory).estimator
        else:
            estimator = Estimator(item)
        label = estimator.label if name is None else str(name)
        if label in estimators:
            raise InputError(
                f"two estimators are called {label!r}: name them, {{'mine': ..., 'other': ...}}"
            )
        estimators[label] = estimator
    if not estimators:
        raise InputError(f"estimators are {given!r}: give at least one")
    return estimators


def _measured(
    cell: GradientCell, named: Mapping[str, Estimator], replications: int, seed: int, across: bool
) -> dict[str, _Row]:
    """The error of each estimator, by enumeration if that is feasible, else from the same draws for all.

    Arguments:
        across: whether functions use other prompts of the minibatch.
    """
    problem, size, batch = cell.problem, cell.group_size, (cell.batch_size, cell.design)
    rows: dict[str, _Row] = {}
    for name, estimator in named.items():
        with suppress(InfeasibleError):
            found = enumerate_mse(problem, estimator, size, *batch)
            rows[name] = _Row(found.mse, 0.0, found.mean)
    left = [name for name in named if name not in rows]
    if left:
        sums = _drawn(cell, [SquaredError(named[name]) for name in left], replications, seed)
        for place, name in enumerate(left):
            mean = None
            with suppress(InfeasibleError):
                mean = enumerate_mean(problem, named[name], size, *(batch if across else ()))
            error = float(sums.standard_error[place])
            rows[name] = _Row(float(sums.mean[place]), error, mean, sums, place)
    return {name: rows[name] for name in named}


def _off(problem: SoftmaxBandit, row: _Row) -> tuple[float, float]:
    """‖E ĝ - g‖/‖g‖ and the rescaled MSE, if E ĝ is known and g is not 0."""
    gradient = problem.gradient()
    length = float(np.linalg.norm(gradient))
    if row.mean is None or not length:
        return nan, nan
    off = float(np.linalg.norm(row.mean - gradient))
    factor = float(row.mean @ gradient) / length**2
    # The MSE about g contains ‖g‖² and twice the mean along g.
    second_moment = row.mse + (2 * factor - 1) * length**2
    rescaled = second_moment / factor**2 - length**2 if factor > DERIVED else nan
    return off / length if off > DERIVED * length else 0.0, rescaled


def _drawn(
    cell: GradientCell, quantities: Sequence[SquaredError], replications: int, seed: int
) -> MomentSums:
    """The sums over replications, from the compiled engine if it has all estimators."""

    def measure(engine: str) -> MomentSums:
        blocks = (
            cell.measure(
                engine,
                quantities,
                seed=seed,
                first=first,
                replications=min(cell.block, replications - first),
            )
            for first in range(0, replications, cell.block)
        )
        return reduce(MomentSums.merge, blocks)

    try:
        return measure("cpu")
    except InputError:
        return measure("reference")
