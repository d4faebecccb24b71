"""The difference of two logs' rewards, and the gap that they could have shown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...display.shown import Shown
from ...inference import ERRORS, means, shape_of
from ...inference.estimate import Estimate
from ...rounding import DERIVED
from ...validation import InputError
from ..pool.moments import share_interval
from ..prompts import check_rewards
from .files import rewards_of_prompts

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from ...validation import Array

POWER = 0.8
"""The chance with which a gap is seen."""
_SEEN, _SHARE = 6.0, 1 / 3
"""The fewest effective prompts behind a spread for which an interval is Student's, or their share."""
_WIDTH = 100
"""The number of characters of a line."""


@dataclass(frozen=True)
class RunMean(Shown):
    """The mean reward of a run over its prompts.

    Attributes:
        name: the run's log.
        prompts: number of prompts.
        rollouts: least and largest number of rollouts of a prompt.
        mean: the mean over prompts of a prompt's mean reward.
    """

    name: str
    prompts: int
    rollouts: tuple[int, int]
    mean: float

    def __str__(self) -> str:
        low, high = self.rollouts
        each = f"{low} to {high}" if low < high else f"{low}"
        return (
            f"{self.name}: {self.prompts} prompt{'s' * (self.prompts > 1)}, {each} "
            f"rollout{'s' * (high > 1)} each; mean reward {self.mean:.4g}"
        )


@dataclass(frozen=True)
class RewardDifference(Shown):
    """The difference of two logs' mean rewards, its interval, and the gap that the logs could have shown.

    Attributes:
        first: the first log, with the prompts that are compared.
        second: the other log, likewise.
        paired: whether both logs have the same prompts, so that differences are taken prompt by prompt.
        shared: number of prompts that are in both logs.
        left_out: number of prompts of each log that the other lacks, if it is paired.
        difference: mean reward of the first minus that of the second, with its 95% interval.
        pass_rate: the same difference for the share of the higher of two rewards; None if there are more than
            two.
        gap: least difference that an interval from such logs excludes 0 at with a chance of 80%; None if it
            is not known.
        span: least and largest reward, or 0 and 1 if all are 0 or all are 1.
        few: whether the interval is that of shares of this span, because few prompts carry the spread.
    """

    first: RunMean
    second: RunMean
    paired: bool
    shared: int
    left_out: tuple[int, int]
    difference: Estimate
    pass_rate: Estimate | None
    gap: float | None
    span: tuple[float, float]
    few: bool

    @property
    def rule(self) -> str:
        """The rule of the interval, in words."""
        if self.difference.reason:
            return f"No interval: {self.difference.reason}."
        if not self.few:
            return f"{'Student' if self.paired else 'Welch'}'s interval over prompts."
        carry = "No prompt shows" if not self.difference.se > DERIVED else "Few prompts carry"
        low, high = self.span
        return (
            f"{carry} a spread, so the interval is that of shares of the range {low:g} to {high:g}."
        )

    @property
    def assumptions(self) -> list[str]:
        """What the interval and the gap assume, in words."""
        return [
            "Each prompt counts once, however many rollouts it has.",
            "Prompts are independent draws from those that you ask about"
            + ("." if self.paired else ", in both logs from the same ones."),
            "The gap is for rewards that vary as these do.",
        ]

    def to_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON, with the power of the gap and the assumptions."""
        return {
            **super().to_dict(),
            "power": POWER,
            "error_rate": ERRORS,
            "rule": self.rule,
            "assumptions": self.assumptions,
        }

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for the mean reward, and one for the pass rate if there is one."""
        import pandas as pd

        rows = {"mean reward": self.difference} | (
            {} if self.pass_rate is None else {"pass rate": self.pass_rate}
        )
        return pd.DataFrame(
            {
                "quantity": name,
                "difference": each.value,
                **{end: getattr(each, end) for end in ("se", "low", "high")},
            }
            for name, each in rows.items()
        )

    def __str__(self) -> str:
        found = self.difference
        sure = "not distinguishable from 0"
        if found.low > 0 or found.high < 0:
            sure = f"{'higher' if found.low > 0 else 'lower'} in the first"
        said = f"Mean reward, first minus second: {found}, {sure}."
        if self.pass_rate is not None and self.span != (0.0, 1.0):
            said += f" Pass rate: {self.pass_rate}."
        if self.paired:
            said += f" Prompt by prompt, over the {self.shared} that both logs have"
            lone = ", ".join(
                f"{count} of {log.name}"
                for count, log in zip(self.left_out, (self.first, self.second), strict=True)
                if count
            )
            said += f"; without {lone}, which the other lacks." if lone else "."
        else:
            said += f" {self.shared} prompts are in both logs, too few for pairs: all count as different."
        said += f" {self.rule}"
        gap = "The gap that these runs could have seen is not known."
        if self.gap is not None:
            gap = (
                f"These runs could have seen a gap of {'about ' * self.few}{self.gap:.3g}: with a chance of "
                f"{POWER:.0%} the interval then excludes 0. To see half of it, take four times the prompts."
            )
        parts = [f"{self.first}\n{self.second}"]
        parts += [_filled(each) for each in (said, gap, " ".join(self.assumptions))]
        return "\n\n".join(parts)


def _filled(text: str) -> str:
    """Lines that keep a file's name whole."""
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def compare_rewards(
    file: str | Path,
    against: str | Path,
    *,
    group_by: Sequence[str] = (),
    reward: str | None = None,
) -> RewardDifference:
    """The :func:`reward_difference` of two logs.

    Prompts are the same if their texts are, or their ids where there is no text; without both they are
    different.

    Arguments:
        file, against: the logs, as for :func:`~ustat_pg.llm.rollouts.files.logged_rewards`, also with one
            rollout of a prompt, and with groups of any sizes.
        group_by, reward: as for that function, for both logs.
    """
    tables: list[dict[str, list[NDArray[np.float64]]]] = []
    for place, path in enumerate((file, against), 1):
        table, named = rewards_of_prompts(path, group_by=group_by, reward=reward)
        tables.append(table if named else {f"{place}: {name}": table[name] for name in table})
    one, two = ({name: np.concatenate(table[name]) for name in table} for table in tables)
    return reward_difference(one, two, names=(str(file), str(against)))


def reward_difference(
    first: Mapping[str, ArrayLike],
    second: Mapping[str, ArrayLike],
    *,
    names: Sequence[str] = (),
) -> RewardDifference:
    """The difference of two runs' mean rewards, with its interval, and the gap that they could have shown.

    A run's mean is m = (1/P) Σₓ mₓ over prompts, mₓ the mean of all rewards of prompt x. Rollouts of a prompt
    are a cluster: only the spread between prompts' means enters the error. If two prompts or more, and at
    least half of those of the smaller run, are in both, differences are taken prompt by prompt (Student's
    interval); else the runs are two samples of prompts (Welch's). If few prompts carry the spread, or none,
    the interval is that of shares of the rewards' range (Clopper and Pearson), combined as by Newcombe
    (1998). The gap g solves P(T > t) = 80% for Student's noncentral T with parameter g/se.

    Arguments:
        first: rewards of each prompt by name, (N,), in groups of any sizes N >= 1.
        second: those of the other run, likewise.
        names: of the runs (default: first and second).

    >>> runs = [{f"{x}": [x % 3 == 0, x % 4 < how] for x in range(48)} for how in (3, 2)]
    >>> found = reward_difference(*runs)
    >>> print(found.difference, round(found.gap, 3), found.paired)
    0.125 [0.0615, 0.189] 0.09 True
    """
    names = names or ("first", "second")
    runs = [
        {name: check_rewards(run, name, rewards, None) for name, rewards in table.items()}
        for run, table in zip(names, (first, second), strict=True)
    ]
    for run, table in zip(names, runs, strict=True):
        if not table or not all(map(len, table.values())):
            raise InputError(
                f"{run} has a prompt without rewards, or no prompt: each must have some"
            )
    shared = [name for name in runs[0] if name in runs[1]]
    sizes = [*map(len, runs)]
    paired = len(shared) >= 2 and 2 * len(shared) >= min(sizes)
    tables = [{name: run[name] for name in (shared if paired else run)} for run in runs]
    low, high = _range(tables)
    unit = (high - low) or 1.0
    rates = [np.array([(each - low).mean() for each in table.values()]) / unit for table in tables]
    scaled, freedom, few = _paired(rates[0] - rates[1]) if paired else _two(*rates)
    if low == high:
        scaled = _unknown(0.0, "all rewards are equal, and their range is not known")
    levels = np.unique(np.concatenate([each for table in tables for each in table.values()]))
    return RewardDifference(
        _run_mean(names[0], tables[0]),
        _run_mean(names[1], tables[1]),
        paired,
        len(shared),
        (sizes[0] - len(shared), sizes[1] - len(shared)) if paired else (0, 0),
        _times(scaled, unit),
        scaled if len(levels) <= 2 and low < high else None,
        _gap(_times(scaled, unit), freedom),
        (low, high),
        few,
    )


def _run_mean(name: str, table: Mapping[str, NDArray[np.float64]]) -> RunMean:
    sizes = [len(each) for each in table.values()]
    mean = float(np.mean([each.mean() for each in table.values()]))
    return RunMean(name, len(table), (min(sizes), max(sizes)), mean)


def _range(tables: Sequence[Mapping[str, NDArray[np.float64]]]) -> tuple[float, float]:
    """The least and the largest reward; 0 and 1 if all are 0 or all are 1."""
    ends = [(each.min(), each.max()) for table in tables for each in table.values()]
    low, high = float(min(end for end, _ in ends)), float(max(end for _, end in ends))
    if not math.isfinite(high - low):
        raise InputError(f"rewards are {low:g} to {high:g}: their range must be finite")
    return (0.0, 1.0) if low == high and low in (0.0, 1.0) else (low, high)


def _paired(differences: Array) -> tuple[Estimate, float, bool]:
    """The mean of differences in [-1, 1], its degrees of freedom, and whether few prompts carry it."""
    from scipy.stats import ttest_1samp

    value, freedom = float(differences.mean()), len(differences) - 1
    if _shows(differences):
        return _estimate(ttest_1samp(differences, 0.0), value), freedom, False
    up, down = np.maximum(differences, 0.0), np.maximum(-differences, 0.0)
    se = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return _of_shares(value, se, up, down), freedom, True


def _two(one: Array, two: Array) -> tuple[Estimate, float, bool]:
    """The difference of two means of values in [0, 1], its degrees of freedom, and whether few prompts carry
    the spread.
    """
    from scipy.stats import ttest_ind

    value, freedom = float(one.mean() - two.mean()), min(len(one), len(two)) - 1
    if not freedom:
        return _unknown(value, "1 prompt does not show how rewards vary between prompts"), 0, True
    if _shows(one) and _shows(two):
        found = ttest_ind(one, two, equal_var=False)
        return _estimate(found, value), float(found.df), False
    se = math.hypot(*(float(each.std(ddof=1)) / math.sqrt(len(each)) for each in (one, two)))
    return _of_shares(value, se, one, two), freedom, True


def _shows(values: Array) -> bool:
    """Whether enough prompts carry the spread; what rounding makes is none."""
    apart = values - values.mean()
    carriers = shape_of(np.where(np.abs(apart) > DERIVED, apart, 0.0)[:, None])[2]
    return bool(carriers >= min(_SEEN, _SHARE * len(values)))


def _estimate(found: Any, value: float) -> Estimate:
    """A mean with its error and its interval, from one of SciPy's tests."""
    low, high = map(float, found.confidence_interval(1 - ERRORS))
    return Estimate(value, (high - low) / (2 * _student(found.df)), low, high)


def _student(freedom: float) -> float:
    from scipy.stats import t

    return float(t.isf(ERRORS / 2, freedom))


def _of_shares(value: float, se: float, up: Array, down: Array) -> Estimate:
    """The difference of two shares of the range, with Newcombe's interval."""
    (a, low_a, high_a), (b, low_b, high_b) = (
        (float(each.mean()), *(float(end[0]) for end in share_interval(means(each[:, None]))))
        for each in (up, down)
    )
    low = value - math.hypot(a - low_a, high_b - b)
    return Estimate(value, se, low, value + math.hypot(high_a - a, b - low_b))


def _unknown(value: float, reason: str) -> Estimate:
    return Estimate(value, math.nan, -math.inf, math.inf, reason)


def _times(each: Estimate, factor: float) -> Estimate:
    """An estimate in other units."""
    value, se, low, high = (factor * end for end in (each.value, each.se, *each.interval))
    return Estimate(value, se, low, high, each.reason)


def _gap(found: Estimate, freedom: float) -> float | None:
    """The gap that these runs show with a chance of 80%; None if the interval has no ends."""
    from scipy.optimize import brentq
    from statsmodels.stats.power import TTestPower

    if not math.isfinite(found.high - found.low):
        return None
    edge, count = _student(freedom), freedom + 1

    def missing(errors: float) -> float:
        effect = errors / math.sqrt(count)
        chance = TTestPower().power(effect, count, ERRORS / 2, freedom, alternative="larger")
        return float(np.ravel(chance)[0]) - POWER

    # It is 1.29 edges of the interval for one degree of freedom, and 1.43 for many.
    return float(brentq(missing, edge, 1.5 * edge)) * (found.high - found.low) / (2 * edge)
