"""The record of the advice on a group size, with its text, table and plot (Theorem 7, group_size)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..display.numbers import readable
from ..display.shown import Shown, axes_or_new

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NEAR = 1.05
"""The largest ratio to the least error that still counts as near it, as in the interval. If no G that fits
the budget is near the best real G, the advice is another budget.
"""

ERRS = 0.05
"""The share of accepted wrong answers for which the advice reports the effect."""

SHOWN_ROWS = 24
"""The most rows of a printed table."""


@dataclass(frozen=True)
class GroupSizeRow:
    """One way to spend the budget.

    Arguments:
        group_size: G.
        batch_size: B.
        mse: MSE of grpo's gradient at both.
        ratio_to_best: that MSE divided by the least feasible MSE, at least 1.
        frac_reward_zero_std: share of groups whose rewards are all equal, which give no signal; None if it is
            not known.
    """

    group_size: int
    batch_size: int
    mse: float
    ratio_to_best: float
    frac_reward_zero_std: float | None


@dataclass(frozen=True)
class GroupSizeAdvice(Shown):
    """The advice on which group size to use, and how little the choice matters.

    Arguments:
        g_star_paper: √(c3/c1) [reconstructed]; None if c1 = 0. It ignores costs and a finite set of prompts.
        g_star_exact: the real G with the least MSE, without regard to the budget; None if c1 = 0.
        group_size: the feasible G with the least MSE; the largest one if several are equal.
        g_interval: the least and greatest whole G with an MSE at most 5% above that of group_size, at the
            real B that spends the budget.
        table: feasible group sizes in increasing order, group_size among them.
        ratio_to_real: MSE of group_size divided by the least at a real G >= 2 and B that spend the budget, at
            least 1; it is the cost of whole numbers.
        better_budget: the nearest budget that a good group size divides, and that size, if they are known.
        advised: advice in words, if the caller knows more than this record.
        with_errors: the best real G, and the factor on the noise over signal of group_size, if a verifier
            accepts :data:`ERRS` of the wrong answers; None if rewards are not 0 and 1.
    """

    g_star_paper: float | None
    g_star_exact: float | None
    group_size: int
    g_interval: tuple[int, int]
    table: tuple[GroupSizeRow, ...]
    ratio_to_real: float
    better_budget: tuple[int, int] | None = None
    advised: str | None = None
    with_errors: tuple[float, float] | None = None

    @property
    def shown(self) -> tuple[GroupSizeRow, ...]:
        """The printed rows: all, or for a long table the first in each octave and the best."""
        if len(self.table) <= SHOWN_ROWS:
            return self.table
        octaves: dict[int, GroupSizeRow] = {}
        for row in self.table:
            octaves.setdefault(row.group_size.bit_length(), row)
        first = {row.group_size for row in octaves.values()} | {self.group_size}
        return tuple(row for row in self.table if row.group_size in first)

    def remark(self, row: GroupSizeRow) -> str:
        """The note of a row in the table."""
        if row.group_size == self.group_size:
            return "best that fits" if self.far else "best"
        return "within 5%" if self.over_the_best(row) <= NEAR else ""

    @property
    def far(self) -> bool:
        """Whether no feasible group size is near the best real one, with which errors are then compared."""
        return self.g_star_exact is not None and self.ratio_to_real > NEAR

    def over_the_best(self, row: GroupSizeRow) -> float:
        """The MSE of a row relative to group_size, or to the best real G if group_size is far from it."""
        return row.ratio_to_best * (self.ratio_to_real if self.far else 1.0)

    def _sentence(self) -> str:
        best, star, (low, high) = self.group_size, self.g_star_exact, self.g_interval
        if self.far and star is not None:
            other = (
                "another budget"
                if self.better_budget is None
                else "a budget of {} with G = {}".format(*self.better_budget)
            )
            return (
                f"No group size that fits this budget is near the best real one, {readable(star, 4)}: take "
                f"{other}, or G = {best}, with {readable(self.ratio_to_real)} times the least error."
            )
        if low == high:
            return f"Use G = {best}: no other group size is within 5% of its error."
        near = f"every group size from {low} to {high} that spends the budget is within 5% of the least error"
        if star is None:
            return f"Use one prompt with G = {best}, or nearly: more prompts gain nothing here, and {near}."
        return f"Use G = {best}, or nearly: the optimum is wide, and {near}."

    def to_dict(self) -> dict[str, Any]:
        """The best group sizes and the table, as a dict for JSON."""
        keys = ("group_size", "mse", "ratio_to_best", "frac_reward_zero_std")
        sizes = ("g_star_paper", "g_star_exact", "group_size", "g_interval")
        table = [{key: getattr(row, key) for key in keys} for row in self.table]
        return {**{name: getattr(self, name) for name in sizes}, "table": table}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [
                row.group_size,
                row.batch_size,
                readable(row.mse, 4),
                f"{self.over_the_best(row):.3f}"
                if self.over_the_best(row) < 1e4
                else readable(self.over_the_best(row), 2),
                "-" if row.frac_reward_zero_std is None else f"{row.frac_reward_zero_std:.1%}",
                self.remark(row),
            ]
            for row in self.shown
        ]
        header = ["G", "prompts", "MSE", "over the best", "groups with equal rewards", "note"]
        align = ("right",) * 5 + ("left",)
        lines = [tabulate(rows, header, disable_numparse=True, colalign=align)]
        if len(rows) < len(self.table):
            lines.append(f"({len(rows)} of {len(self.table)} group sizes; JSON has all)")
        lines.append("")
        for text, star in (
            ("best real G", self.g_star_exact),
            ("the paper's √(c3/c1), reconstructed", self.g_star_paper),
        ):
            best = (
                "does not exist: more prompts gain nothing" if star is None else readable(star, 4)
            )
            lines.append(f"{text:36} {best}")
        if self.with_errors is not None:
            text = f"if {ERRS:.0%} of wrong answers are accepted"
            lines.append(
                "{:36} {:.4g}, at {:.3g} times the noise over signal".format(
                    text, *self.with_errors
                )
            )
        return "\n".join([*lines, "", self.advised or self._sentence()])

    def to_frame(self) -> pd.DataFrame:
        """The table, with a row for each feasible group size.

        Returns:
            columns group_size, batch_size, mse, ratio_to_best and frac_reward_zero_std (NaN if it is not
            known).

        >>> from ustat_pg.predictions import group_size_advice
        >>> from ustat_pg.problems import example_problem, problem_from_mapping
        >>> advice = group_size_advice(problem_from_mapping(example_problem()), 8)
        >>> advice.to_frame().round(4)
           group_size  batch_size     mse  ratio_to_best  frac_reward_zero_std
        0           2           4  0.0500         1.2980             0.3826
        1           4           2  0.0385         1.0000             0.0788
        2           8           1  0.0492         1.2765             0.0047
        """
        import pandas as pd

        return pd.DataFrame(map(asdict, self.table)).astype({"frac_reward_zero_std": float})

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the error divided by the least error, and shade the group sizes within 5%.

        Arguments:
            axes: axes to draw on (default: new axes).
        """
        axes = axes_or_new(axes)
        sizes = [row.group_size for row in self.table]
        axes.axvspan(*self.g_interval, color="0.9", label="within 5% of the least")
        axes.plot(sizes, [row.ratio_to_best for row in self.table], "o-", markersize=4)
        axes.plot([self.group_size], [1.0], "o", color="C3", label=f"best: G = {self.group_size}")
        for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
            scale("log", base=2)
            axis.set_major_formatter("{x:g}")
        axes.set(xlabel="group size G", ylabel="MSE over the least", ylim=(0.95, None))
        axes.legend(frameon=False)
        return axes


@dataclass(frozen=True)
class Advice(Shown):
    """An advice on ``group_size`` that is based on a table of group sizes."""

    sizes: GroupSizeAdvice

    def to_frame(self) -> pd.DataFrame:
        """The table, as :meth:`GroupSizeAdvice.to_frame` has it."""
        return self.sizes.to_frame()

    def plot(self, axes: Axes | None = None) -> Axes:
        """The picture of :meth:`GroupSizeAdvice.plot`."""
        return self.sizes.plot(axes)
