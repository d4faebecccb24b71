"""The command ``ustat-pg rewards``: reasons for a loss of 0 or a flat reward, and pass rates, from rewards
without a model.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...display.shown import Shown, plain
from ...noise.alarms import LEVELS, NEAR, ROUNDING
from ...validation import InputError, argument
from ..pool.moments import frac_reward_zero_std
from ..pool.printing import percent
from ..pool.scored import LEAST_ROLLOUTS
from .files import LoggedRewards, logged_rewards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from ...predictions import DrawingAdvice
    from ...validation import Array

_CUT_OFF = 0.1
"""The largest share of truncated outputs that is not a fault."""
_SMALL = 0.5
"""The share of a group's advantages below which ε makes them small."""
_WIDTH = 100
"""The number of characters of a line."""


@dataclass(frozen=True)
class Finding:
    """A reason why a loss is 0 or a reward is flat, with its evidence.

    Attributes:
        cause: ``"silent"``, ``"cut off"``, ``"constant part"`` or ``"nearly equal"``.
        count, of: number of groups (or cut-off outputs), and the total.
        says: the reason in words.
    """

    cause: str
    count: int
    of: int
    says: str


@dataclass(frozen=True, eq=False)
class RewardSummary(Shown):
    """Pass rates, shares of groups with equal rewards, and the reasons for a loss of 0 or a flat reward.

    Arguments:
        rewards: rewards of each prompt, a row under its id.
        frac_reward_zero_std: :func:`~ustat_pg.llm.pool.moments.frac_reward_zero_std` of the rewards.
        finished: whether each output ended and was not cut off, (P, N); None if that is not known.
        parts: summands of the rewards by name, (P, N) each.
        prompts: number of each row's prompt, (P,), if a prompt may have several rows.
        epsilon: ε that the trainer adds to a group's deviation (default: that of each framework).
    """

    rewards: pd.DataFrame
    frac_reward_zero_std: pd.DataFrame
    finished: NDArray[np.bool_] | None = None
    parts: Mapping[str, Array] = field(default_factory=dict)
    prompts: NDArray[np.intp] | None = None
    epsilon: float | None = None

    @property
    def findings(self) -> list[Finding]:
        """The reasons why the loss is 0 or the reward is flat, the strongest first; empty for a sound log."""
        values = self.rewards.to_numpy(dtype=np.float64)
        equal = _equal(values)
        finished = np.ones(values.shape, bool) if self.finished is None else self.finished
        found = [*_silent(values, equal, finished), *_cut_off(values, equal, finished)]
        return [*found, *_constant(self.parts, equal), *_nearly_equal(values, equal, self.epsilon)]

    @property
    def pass_rates(self) -> dict[str, float]:
        """The share of each prompt's rewards with the higher of two values, by id.

        Raises:
            InputError: rewards have more than two values.
        """
        values = self.rewards.to_numpy()
        levels = np.unique(values)
        if len(levels) > 2:
            raise InputError(
                f"rewards have {len(levels)} values, {levels[0]:g} to {levels[-1]:g}: a pass "
                f"rate needs two. Write success as 0 or 1, or use advise with the model that "
                f"wrote the outputs, which accepts any rewards"
            )
        # If there is one value above 0, all succeed.
        success = levels[-1] if len(levels) == 2 or levels[-1] > 0 else np.inf
        rates = (values == success).mean(axis=1)
        return {
            str(name): float(rate) for name, rate in zip(self.rewards.index, rates, strict=True)
        }

    def drawing(self) -> DrawingAdvice:
        """The law of prompts by their pass rates, and its saving as far as rewards alone tell it.

        Raises:
            InputError: a prompt has several groups; see also
                :func:`~ustat_pg.llm.pool.drawing.reward_drawing_advice`.
        """
        from ..pool.drawing import reward_drawing_advice

        groups = len(self.rewards)
        if self.prompts is not None and (count := len(set(self.prompts.tolist()))) < groups:
            raise InputError(
                f"{count} prompts have {groups} groups: a law of prompts needs one group of each: "
                f"group by the prompt ({argument('group_by', 'COLUMN')}) if its pass rate is still the same"
            )
        return reward_drawing_advice(self.rewards.to_numpy(), [*map(str, self.rewards.index)])

    def to_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON, with the shares of prompts with all rewards at the lowest or highest
        value.

        Pass rates are None if rewards have more than two values.
        """
        values = self.rewards.to_numpy()
        rates = self.pass_rates if len(np.unique(values)) <= 2 else None
        return {
            "prompts": len(values),
            "rollouts": values.shape[1],
            "mean_reward": float(values.mean()),
            "pass_rate": None if rates is None else float(np.mean([*rates.values()])),
            "all_lowest": float((values == values.min()).all(axis=1).mean()),
            "all_highest": float((values == values.max()).all(axis=1).mean()),
            "pass_rates": rates,
            **plain({"frac_reward_zero_std": self.frac_reward_zero_std, "findings": self.findings}),
        }

    def to_frame(self) -> pd.DataFrame:
        """A table of the shares of groups with equal rewards, with a row for each group size."""
        return self.frac_reward_zero_std

    def __str__(self) -> str:
        from tabulate import tabulate

        record, values = self.to_dict(), self.rewards.to_numpy()
        lowest, highest, rollouts = values.min(), values.max(), record["rollouts"]
        known = f"mean reward {record['mean_reward']:.3f}"
        if record["pass_rate"] not in (None, record["mean_reward"]):
            known += f", pass rate {record['pass_rate']:.3f}"
        spread = (
            f"all rewards {lowest:g} on {record['all_lowest']:.1%} of prompts, all {highest:g} on "
        )
        spread += f"{record['all_highest']:.1%}"
        rows = [
            [
                int(row["group_size"]),
                percent(row["frac_reward_zero_std"]),
                f"{row['low']:.1%} to {row['high']:.1%}",
                f"at most the share at {rollouts}, the number of rollouts" if row["biased"] else "",
            ]
            for row in self.frac_reward_zero_std.to_dict("records")
        ]
        header = ["G", "groups with equal rewards", "95%", "note"]
        align = ("right",) * 3 + ("left",)
        found = [textwrap.fill(each.says, _WIDTH) for each in self.findings]
        said = "".join(f"{words}\n" for words in found) + "\n" * bool(found)
        few = f", at least {LEAST_ROLLOUTS} of each prompt" if rollouts < LEAST_ROLLOUTS else ""
        return (
            f"{record['prompts']} prompts, {rollouts} rollouts each; {known}; "
            f"{f'all rewards are {highest:g}' if highest == lowest else spread}\n\n{said}"
            f"{tabulate(rows, header, disable_numparse=True, colalign=align)}\n\n"
            "Advice on a group size needs the scores of these rollouts"
            f"{few}: use advise with the model that wrote them."
        )


def summarise_rewards(
    file: str | Path,
    group_sizes: Sequence[int] | None = None,
    *,
    group_by: Sequence[str] = (),
    reward: str | None = None,
    epsilon: float | None = None,
) -> RewardSummary:
    """Pass rates, shares of groups with equal rewards, and reasons for a loss of 0 or a flat reward.

    Arguments:
        file: file of rewards, or a trainer's log, as for :func:`~ustat_pg.llm.rollouts.files.logged_rewards`.
        group_sizes: group sizes, at least 2 (default: the rollouts of a prompt, and the powers of 2 below).
        group_by, reward: as for that function.
        epsilon: ε that the trainer adds to a group's deviation (default: that of each framework).
    """
    import pandas as pd

    from ...validation import integer, number

    if epsilon is not None:
        epsilon = number("epsilon", epsilon, minimum=0.0)
    log: LoggedRewards = logged_rewards(file, group_by=group_by, reward=reward)
    rollouts = log.rewards.shape[1]
    sizes = group_sizes or [*(2**k for k in range(1, (rollouts - 1).bit_length())), rollouts]
    return RewardSummary(
        pd.DataFrame(log.rewards, index=list(log.names)),
        frac_reward_zero_std(
            log.rewards, [integer("group size", size, 2) for size in sizes], log.prompts
        ),
        log.finished,
        log.parts,
        log.prompts,
        epsilon,
    )


def _equal(values: Array) -> NDArray[np.bool_]:
    """Whether all values of a group are equal, up to the rounding of single precision, (P,)."""
    low, high = values.min(axis=1), values.max(axis=1)
    return np.asarray(high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high)))


def _share(count: int, of: int) -> str:
    """The share of a count in parentheses: 80% for ``412 of 512 groups``."""
    return f"({count / of:.0%})"


def _silent(
    values: Array, equal: NDArray[np.bool_], finished: NDArray[np.bool_]
) -> Iterator[Finding]:
    count, of = int(equal.sum()), len(equal)
    if count < LEVELS["silent"] * of:
        return
    low, high = values.min(), values.max()
    lost, won = (int((values[equal] == end).all(axis=1).sum()) for end in (low, high))
    says = f"{count} of {of} groups {_share(count, of)} have equal rewards, so their gradient is 0."
    ends = {f"{low:g}": lost, f"{high:g}": won}
    shown = " and ".join(f"{end} in {many} of them" for end, many in ends.items() if many)
    if shown:
        why = ": prompts are too easy, or the verifier accepts wrong answers"
        if lost > won or (lost == won and low <= 0):
            why = ": prompts are too hard, or the verifier rejects right answers"
        # Outputs that were cut off give no information about prompts.
        explained = 2 * _wholly_cut_off(equal, finished) >= count
        says += f" All rewards are {shown}{'' if explained else why}."
    yield Finding("silent", count, of, says)


def _wholly_cut_off(equal: NDArray[np.bool_], finished: NDArray[np.bool_]) -> int:
    """The groups of equal rewards in which no output ended."""
    return int((equal & ~finished.any(axis=1)).sum())


def _cut_off(
    values: Array, equal: NDArray[np.bool_], finished: NDArray[np.bool_]
) -> Iterator[Finding]:
    """The outputs that are cut off, if they have lower rewards than the others."""
    count, of = int((~finished).sum()), finished.size
    if count <= _CUT_OFF * of:
        return
    cut, rest = float(values[~finished].mean()), ""
    if count < of:
        ended = float(values[finished].mean())
        if cut >= ended:
            return
        rest = f", that of the others {ended:.3g}"
    says = f"{count} of {of} outputs {_share(count, of)} were cut off: their mean reward is {cut:.3g}{rest}."
    if wholly := _wholly_cut_off(equal, finished):
        says += (
            f" In {wholly} of {int(equal.sum())} groups of equal rewards all outputs were cut off."
        )
    yield Finding("cut off", count, of, says + " First allow longer outputs.")


def _constant(parts: Mapping[str, Array], equal: NDArray[np.bool_]) -> Iterator[Finding]:
    """The parts of the reward that are constant in most of the groups with unequal rewards."""
    of = int((~equal).sum())
    for name, part in parts.items():
        count = int(_equal(part[~equal]).sum()) if of else 0
        if of and count >= LEVELS["silent"] * of:
            others = " and ".join(other for other in parts if other != name)
            says = (
                f"{name} is constant in {count} of the {of} groups with unequal rewards "
                f"{_share(count, of)}: their advantages come from {others} alone."
            )
            yield Finding("constant part", count, of, says)


def _nearly_equal(
    values: Array, equal: NDArray[np.bool_], epsilon: float | None
) -> Iterator[Finding]:
    """The groups whose rewards nearly agree, and how much of their advantages ε leaves."""
    added = _added() if epsilon is None else {epsilon: []}
    deviations, whole = values.std(axis=1), float(values.std())
    near = ~equal & (deviations < max(NEAR * whole, *added))
    count, of = int(near.sum()), len(equal)
    if count <= LEVELS["spikes"] * of:
        return
    usual = float(np.median(values[near].std(axis=1, ddof=1)))
    left = {each: usual / (usual + each) for each in added}
    why = (
        f", but that of all rewards is {whole:.2g}: after division by their own deviation such "
        "differences count like those of right and wrong; without it they have almost no effect."
    )
    if min(left.values()) < _SMALL:
        shares = [
            f"{left[each]:.0%} with ε = {np.format_float_scientific(each, trim='-', exp_digits=1)}"
            f"{' (' * bool(names)}{', '.join(names)}{')' * bool(names)}"
            for each, names in added.items()
        ]
        why = (
            ". Divided by it and the trainer's ε, their advantages have, of their full size, "
            f"{'; '.join(shares)}."
        )
        if max(left.values()) >= _SMALL:
            why += " Near 100%, such differences count like those of right and wrong."
    says = f"{count} of {of} groups {_share(count, of)} have nearly equal rewards, of deviation {usual:.2g}"
    yield Finding("nearly equal", count, of, says + why)


def _added() -> dict[float, list[str]]:
    """The frameworks by the ε that they add to a group's deviation, the largest first."""
    from ...catalogue import catalogue

    found: dict[float, list[str]] = {}
    for name, framework in catalogue().frameworks.items():
        for each in {row.epsilon for row in framework.rows if row.ddof is not None} - {0.0}:
            found.setdefault(each, []).append(name)
    return dict(sorted(found.items(), reverse=True))
