"""``ustat-pg rewards``: pass rates and groups without signal, from rewards without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError
from .printing import percent, records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd


@dataclass(frozen=True, eq=False)
class RewardSummary:
    """Pass rates and shares of groups with equal rewards.

    Arguments:
        rewards: of each prompt, a row under its id.
        zero_signal: :func:`~ustat_pg.llm.moments.zero_signal` of the rewards.
    """

    rewards: pd.DataFrame
    zero_signal: pd.DataFrame

    @property
    def pass_rates(self) -> dict[str, float]:
        """The share of each prompt's rewards that are the higher of two values, by its id.

        Raises:
            InputError: rewards have more than two values.
        """
        values = self.rewards.to_numpy()
        levels = np.unique(values)
        if len(levels) > 2:
            raise InputError(
                f"rewards have {len(levels)} values, {levels[0]:g} to {levels[-1]:g}: a pass rate takes two. "
                "Write a success of your own as 0 or 1, or ask of the rewards as they are: ustat-pg advise "
                "--model M --rollouts FILE"
            )
        # Of one value above 0 all succeed.
        success = levels[-1] if len(levels) == 2 or levels[-1] > 0 else np.inf
        rates = (values == success).mean(axis=1)
        return {
            str(name): float(rate) for name, rate in zip(self.rewards.index, rates, strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """All of it, and the shares of prompts whose rewards all are the lowest, or the highest, as JSON.

        Pass rates are None where rewards have more than two values.
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
            "zero_signal": records(self.zero_signal),
        }

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
                percent(row["share"]),
                f"{row['low']:.1%} to {row['high']:.1%}",
                f"at most the share at {rollouts}, the rollouts there are" if row["biased"] else "",
            ]
            for row in self.zero_signal.to_dict("records")
        ]
        header = ["G", "groups with equal rewards", "95%", "note"]
        align = ("right",) * 3 + ("left",)
        return (
            f"{record['prompts']} prompts, {rollouts} rollouts of each; {known}; "
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
    import pandas as pd

    from ..validation import integer
    from .files import load_rewards
    from .moments import zero_signal

    names, rewards = load_rewards(file, group_by=group_by, reward=reward)
    sizes = group_sizes or [2**power for power in range(1, rewards.shape[1].bit_length())]
    shares = zero_signal(rewards, [integer("group size", size, 2) for size in sizes])
    return RewardSummary(pd.DataFrame(rewards, index=list(names)), shares)
