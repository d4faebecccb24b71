"""A leaderboard of unbiased advantage functions, by their exact errors on fixed problems.

With rewards 0 and 1 an advantage function that does not look at the order of a group is a table by the
number of successes (count_advantages). The table is read off the function, and its error is a closed
form: no enumeration of groups, no sampling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..moments import Moments
from ..predictions import CountTable, count_table, gradient_mse
from ..problems import SoftmaxBandit
from .function import UnderTest, Violation, reports

__all__ = ["LEADERBOARD_SIZES", "Leaderboard", "leaderboard"]

Array = NDArray[np.float64]

LEADERBOARD_SIZES = (2, 4, 8, 16)
"""The group sizes of the leaderboard."""

KNOWN = {
    "leave-one-out mean (RLOO)": "grpo",
    "no baseline (REINFORCE)": "vanilla",
    "Bayes leave-one-out, uniform": "bayes:1,1",
    "Bayes leave-one-out, Beta(1, 3)": "bayes:1,3",
    "shrinkage, half to 1/2": "shrinkage:0.5,0.5",
    "best table (knows the problem)": "best",
}
"""Estimators that stand on it from the start."""

_TOLERANCE = 1e-5
"""How far a gain of a success on a failure may be from 1: single precision."""

_ARMS = 20


def _equal_arms(*right: int) -> SoftmaxBandit:
    """Equally likely prompts of 20 equally likely arms, of which so many are right."""
    rewards = (np.arange(_ARMS) < np.array(right)[:, None]).astype(float)[..., None]
    chance = np.full(len(right), 1 / len(right))
    return SoftmaxBandit.tabular(
        chance, np.zeros(rewards.shape[:2]), rewards, np.ones_like(rewards)
    )


@functools.cache
def _problems() -> dict[str, Moments]:
    right = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]])[..., None]
    peaked = SoftmaxBandit.tabular(
        np.full(4, 0.25), [np.log([0.8, 0.1, 0.05, 0.05])] * 4, right, np.ones_like(right)
    )
    found = {
        "even": _equal_arms(*range(2, 20, 2)),
        "hard": _equal_arms(1, 1, 1, 1, 2, 2, 3, 5),
        "hard and easy": _equal_arms(1, 1, 19, 19),
        "peaked": peaked,
    }
    return {name: problem.moments() for name, problem in found.items()}


@dataclass(frozen=True)
class Leaderboard:
    """Errors over the oracle's, of unbiased estimators on fixed problems, the best first.

    Arguments:
        errors: by estimator, problem and group size: the MSE of a batch that holds every prompt once,
            over that of the oracle, which knows each prompt's pass rate.
    """

    errors: dict[str, dict[str, dict[int, float]]]

    def mean(self, name: str, group_size: int) -> float:
        """The geometric mean over problems at one group size."""
        ratios = [by_size[group_size] for by_size in self.errors[name].values()]
        return float(np.exp(np.mean(np.log(ratios))))

    def overall(self, name: str) -> float:
        """The geometric mean over problems and group sizes, by which entries are ranked."""
        means = [self.mean(name, size) for size in LEADERBOARD_SIZES]
        return float(np.exp(np.mean(np.log(means))))

    @property
    def ranking(self) -> list[str]:
        """The names, the least error first."""
        return sorted(self.errors, key=self.overall)

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [
                name,
                *(f"{self.mean(name, size):.3f}" for size in LEADERBOARD_SIZES),
                f"{self.overall(name):.3f}",
            ]
            for name in self.ranking
        ]
        head = ["MSE over the oracle's", *(f"G = {size}" for size in LEADERBOARD_SIZES), "mean"]
        align = ("left",) + ("right",) * (len(head) - 1)
        return str(tabulate(rows, head, disable_numparse=True, colalign=align))


@reports
def leaderboard(
    *functions: Callable[..., Any],
    layout: str = "batched",
    array: Callable[[Any], Any] | None = None,
) -> Leaderboard:
    """The leaderboard, with advantage functions of your own on it.

    Problems: nine prompts of pass rates .1 to .9; eight hard ones, .05 to .25; two hard and two easy,
    .05 and .95, all with 20 equally likely arms; and four prompts with arms .8, .1, .05, .05, of which the
    first, the second, both, or the other two are right, so that right and wrong scores differ in norm.

    Arguments:
        functions: of rewards alone; called on groups of rewards 0 and 1.
        layout, array: as for :func:`assert_unbiased`; ``"batched"`` or ``"group"``.

    Raises:
        AssertionError: a function is biased, depends on the order of a group, or is not finite.
        InputError: something else is not as said.

    >>> def half(rewards):
    ...     others = rewards.sum(-1, keepdims=True) - rewards
    ...     return rewards - (others + 0.5) / rewards.shape[-1]
    >>> board = leaderboard(half)
    >>> board.ranking.index("half") < board.ranking.index("leave-one-out mean (RLOO)")
    True
    """
    tables: dict[str, Callable[[int, Moments], CountTable]] = {
        title: functools.partial(count_table, name) for title, name in KNOWN.items()
    }
    for function in functions:
        under = UnderTest(function, layout, ("rewards",), array)
        read = {size: _table_of(under, size) for size in LEADERBOARD_SIZES}
        tables[under.name] = lambda size, moments, read=read: read[size]  # type: ignore[misc]
    return Leaderboard(
        {
            title: {
                problem: {
                    size: _error(table(size, moments), moments, size) for size in LEADERBOARD_SIZES
                }
                for problem, moments in _problems().items()
            }
            for title, table in tables.items()
        }
    )


def _error(table: CountTable, moments: Moments, group_size: int) -> float:
    """The error of each prompt once, over the oracle's."""
    noise = table.second_moments(moments) - moments.gradient_sq
    error = float(moments.context_probs @ noise) / len(moments)
    return error / gradient_mse(moments, "oracle", group_size, len(moments), "fixed").mse


def _table_of(under: UnderTest, group_size: int) -> CountTable:
    """The advantages of a function by the number of successes, which must be unbiased.

    Raises:
        Violation: they are not, or depend on the order of the group.
    """
    count = np.arange(group_size + 1)
    sorted_groups = (np.arange(group_size) < count[:, None]).astype(float)
    turned = [np.roll(sorted_groups, shift, axis=1) for shift in range(group_size)]
    rewards = np.stack(turned)  # every place of an output, at every count
    shape = (-1, 1, group_size)
    answers = under(
        rewards.reshape(shape),
        np.ones_like(rewards).reshape(shape),
        np.zeros(rewards.reshape(shape).shape[:2], np.int64),
    ).reshape(rewards.shape)
    back = np.stack([np.roll(own, -shift, axis=1) for shift, own in enumerate(answers)])
    first = np.where(sorted_groups == 1, back[0, :, :1], back[0, :, -1:])
    if np.abs(back - first).max() > _TOLERANCE * (1 + np.abs(first).max()):
        raise Violation(
            f"{under.name} depends on the order of a group: two outputs with one reward have "
            "different advantages"
        )
    table = CountTable(np.append(0.0, back[0, 1:, 0]), np.append(back[0, :-1, -1], 0.0))
    off = np.abs(table.delta - 1)
    if off.max() > _TOLERANCE:
        worst = int(off.argmax())
        raise Violation(
            f"{under.name} is biased: at G = {group_size}, beside {worst} successes among the others, "
            f"a success gains {table.delta[worst]:.4g} on a failure, and not 1"
        )
    return table
