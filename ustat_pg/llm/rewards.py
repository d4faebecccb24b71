"""``ustat-pg rewards``: pass rates and groups without signal, from rewards without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .printing import percent, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd


@dataclass(frozen=True)
class RewardSummary:
    """Pass rates and shares of groups with equal rewards.

    Arguments:
        rollouts: of each prompt.
        pass_rates: the mean reward of each prompt, by its id.
        ends: the lowest and the highest reward.
        all_lowest, all_highest: the shares of prompts whose rewards all are that.
        zero_signal: :func:`~ustat_pg.llm.moments.zero_signal` of the rewards.
    """

    rollouts: int
    pass_rates: dict[str, float]
    ends: tuple[float, float]
    all_lowest: float
    all_highest: float
    zero_signal: pd.DataFrame

    @property
    def pass_rate(self) -> float:
        """The mean reward."""
        return sum(self.pass_rates.values()) / len(self.pass_rates)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "prompts": len(self.pass_rates),
            "rollouts": self.rollouts,
            "pass_rate": self.pass_rate,
            "all_lowest": self.all_lowest,
            "all_highest": self.all_highest,
            "pass_rates": self.pass_rates,
            "zero_signal": records(self.zero_signal),
        }

    def __str__(self) -> str:
        from tabulate import tabulate

        lowest, highest = self.ends
        spread = f"all rewards {lowest:g} on {self.all_lowest:.1%} of prompts, all {highest:g} on "
        spread += f"{self.all_highest:.1%}"
        rows = [
            [
                int(row["group_size"]),
                percent(row["share"]),
                f"{row['low']:.1%} to {row['high']:.1%}",
                f"at most the share at {self.rollouts}, the rollouts there are"
                if row["biased"]
                else "",
            ]
            for row in self.zero_signal.to_dict("records")
        ]
        header = ["G", "groups with equal rewards", "95%", "note"]
        align = ("right",) * 3 + ("left",)
        return (
            f"{len(self.pass_rates)} prompts, {self.rollouts} rollouts of each; mean reward "
            f"{self.pass_rate:.3f}; "
            f"{f'all rewards are {highest:g}' if highest == lowest else spread}\n\n"
            f"{tabulate(rows, header, disable_numparse=True, colalign=align)}\n\n"
            "A group size takes the scores of these rollouts: ustat-pg advise --model M --rollouts FILE."
        )


def summarise_rewards(
    file: str | Path,
    group_sizes: Sequence[int] | None = None,
    *,
    group_by: Sequence[str] = (),
    reward: str | None = None,
) -> RewardSummary:
    """Pass rates and shares of groups with equal rewards, of a file of rewards or a trainer's log.

    Arguments:
        file, group_by, reward: those of :func:`~ustat_pg.llm.files.load_rewards`.
        group_sizes: each at least 2; the powers of 2 up to the rollouts of a prompt unless given.
    """
    from ..validation import integer
    from .files import load_rewards
    from .moments import zero_signal

    names, rewards = load_rewards(file, group_by=group_by, reward=reward)
    rollouts = rewards.shape[1]
    sizes = group_sizes or [2**power for power in range(1, rollouts.bit_length())]
    lowest, highest = float(rewards.min()), float(rewards.max())
    return RewardSummary(
        rollouts,
        dict(zip(names, rewards.mean(axis=1).tolist(), strict=True)),
        (lowest, highest),
        float((rewards == lowest).all(axis=1).mean()),
        float((rewards == highest).all(axis=1).mean()),
        zero_signal(rewards, [integer("group size", size, 2) for size in sizes]),
    )
