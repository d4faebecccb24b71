"""The formatting of numbers for people and for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ...display.numbers import readable
from ...files.reading import printable
from ...inference.constants import Estimates
from .scored import PLAIN, ScoredPool

_ROUNDING = 1e-9
"""An interval with a smaller half-width than this is not printed."""


_METRICS = {
    "adam": "Adam's step, P = 1/(√v + ε)",
    "floored": "Adam's step with v of at least a thousandth of its median",
    "small": "Adam's step in coordinates of v below a thousandth of its median",
}
_NO_END = "no upper end (score more prompts)"


plain = partial(readable, padded=True)
"""A number in a column: zeros at the end of a fraction are kept."""


def finite(value: Any) -> float | None:
    """The number, or None for JSON if it is not finite."""
    return float(value) if np.isfinite(value) else None


def ends(low: float, high: float) -> str:
    """An interval in words.

    >>> ends(2.0, 31.25), ends(2.0, math.inf)
    ('2 to 31.2', '2, no upper end (score more prompts)')
    """
    return readable(low) + (f" to {readable(high)}" if high < math.inf else f", {_NO_END}")


def percent(value: float) -> str:
    """A share, rounded to a tenth of a percent; a dash if it is not known."""
    return f"{value:.1%}" if np.isfinite(value) else "-"


def _grid(frame: Any, texts: list[str], rows: str, columns: str) -> Any:
    """One text for each row and column, in the frame's order; a dash if there is no value."""
    table = frame.assign(text=texts).pivot(index=rows, columns=columns, values="text")
    return table.reindex(index=frame[rows].unique(), columns=frame[columns].unique()).fillna("-")


def _tabulated(table: Any, header: list[str]) -> str:
    from tabulate import tabulate

    rows = table.reset_index().to_numpy().tolist()
    return str(tabulate(rows, header, disable_numparse=True, stralign="right"))


def errors_table(frame: Any, signal: Any) -> str:
    """A table of errors and of shares of groups without signal, with a line for each group size."""
    halves = (frame["high"] - frame["low"]) / 2
    texts = [f"{plain(m)} ± {_end(half)}" for m, half in zip(frame["mse"], halves, strict=True)]
    table = _grid(frame, texts, "group_size", "estimator")
    # Long names take two lines, so that the table fits a terminal.
    header = [name.replace("-", "-\n") for name in ("G", *table, "no signal")]
    text = _tabulated(
        table.assign(signal=[percent(share) for share in signal["frac_reward_zero_std"]]), header
    )
    return (
        f"{text}\n\nMean over prompts of the MSE of one group's gradient, ± half of a 95% interval over "
        f"prompts{_where(texts)}.{_own(frame)}"
    )


def _own(frame: Any) -> str:
    """A sentence with the standard errors of means over random groups, if there are any."""
    drawn = frame[frame["own_se"] > 0]
    if not len(drawn):
        return ""
    names = ", ".join(drawn["estimator"].unique())
    most = (drawn["own_se"] / drawn["mse"].abs()).max()
    return (
        f"\nErrors of {names} are means over random groups of the pool;\ntheir own standard error is at most "
        f"{most:.1%}."
    )


def noise_table(frame: Any) -> str:
    """A table of noise over signal: for the first estimator, and of all others relative to it."""
    first = frame["estimator"].iloc[0]

    def cell(row: Any) -> str:
        alone = row.estimator == first
        if not math.isfinite(value := row.ratio if alone else row.relative):
            return "-"
        if alone:
            return f"{plain(value)} [{plain(row.low, 2)}, {_end(row.high)}]"
        half = (row.relative_high - row.relative_low) / 2
        # A multiple of the first estimator has the ratio 1 up to rounding.
        return plain(value) + (f" ± {_end(half)}" if half > _ROUNDING else "")

    texts = [cell(row) for row in frame.itertuples()]
    table = _grid(frame, texts, "estimator", "group_size")
    text = _tabulated(table, ["", *(f"G={size}" for size in table)])
    return (
        f"{text}\n\nNoise over signal, tr Cov ĝ/‖E ĝ‖², prompts drawn anew: for {first} that of one group "
        f"[95%], to be divided by\nthe prompts of a step; for the others in units of {first}'s, ± half a 95% "
        f"interval of the paired difference{_where(texts)}."
    )


def _end(value: float) -> str:
    return plain(value, 2) if math.isfinite(value) else "∞"


def _where(texts: list[str]) -> str:
    """The meaning of ∞, if a table contains it."""
    return ";\n∞ means that an end is not known" if any("∞" in text for text in texts) else ""


def reading(orders: Any) -> str:
    """Whether vanilla > grpo > oracle, the paper's reading of Figure 4, holds at each group size."""
    words = []
    for size, order in orders.groupby("group_size", sort=False):
        fails = order[order["reading"] == "fails"]
        pairs = ", ".join(fails["larger"] + " above " + fails["paper"])
        unsure = [name for name in ("open", "tie") if name in set(order["reading"])]
        word = f"fails ({pairs})" if pairs else [*unsure, "holds"][0]
        words.append(f"G={size} {word}")
    return "The paper's reading, vanilla above grpo above the oracle: " + "; ".join(words) + "."


def _counted(pool: ScoredPool) -> str:
    """The name of the model, and the numbers of prompts and rollouts."""
    name = pool.config.get("model", "a pool")
    if pool.distinct == pool.size:
        return f"{name}: {pool.size} prompts with {pool.rollouts} rollouts each"
    return f"{name}: {pool.distinct} prompts in {pool.size} groups of {pool.rollouts} rollouts"


def _returning(pool: ScoredPool) -> list[str]:
    """A note on prompts with several groups, if there are any."""
    if pool.distinct == pool.size:
        return []
    return [
        "a prompt's groups are averaged and count as one prompt; if the policy did not change, group by the\n"
        "prompt's column only, which pools its rollouts"
    ]


def _metric(pool: ScoredPool) -> list[str]:
    """The metric of the numbers, if it is not the plain one."""
    if pool.metric == PLAIN:
        return []
    source = printable(str(pool.config.get("optimizer", "a file")))
    return [f"metric: {_METRICS[pool.metric]}, v from {source}"]


def facts(pool: ScoredPool, summary: Any) -> str:
    """The text on a scored pool and its summary, before the tables."""
    rows = summary.set_index("name")
    value, low, high = rows.loc["pass_rate", ["value", "low", "high"]]
    correlation, best, mixed = rows.loc[["correlation", "best_less_value", "mixed"], "value"]
    z, weights, cast = pool.on_policy_z, pool.config.get("dtype"), pool.config.get("autocast_bf16")
    precision = "not recorded" if weights is None else f"weights {weights}"
    precision += ", autocast bfloat16" if cast else ""
    if cast or "float16" in precision:
        precision += "; norms may be off by up to a tenth"
    lines = [
        f"{_counted(pool)}; mean reward {value:.3f} [{low:.3f}, {high:.3f}]",
        *_returning(pool),
        *_metric(pool),
        f"precision of the scores: {precision}",
        f"on-policy test: {'none on record' if z is None else f'z = {z:+.1f}'}",
        f"correlation of ‖s‖² and reward {correlation:.2f}; b* - V, weighted by ‖s‖², {best:.3f}; rewards "
        f"differ on {mixed:.0%} of prompts\n",
    ]
    if pool.looks > 1:
        level = (
            f"the 95% apply to all {pool.looks} looks together, {1 - 0.05 / pool.looks:.1%} to each"
        )
        lines.insert(2, level)
    return "\n".join(lines)


def stale_facts(pool: ScoredPool, bound_share: Any, divergence: Any) -> str:
    """The text on a pool of an older policy's rollouts, before the tables."""
    cells = [
        f"{row['name']} {plain(row['value'])}"
        + (f" ± {plain(row['se'], 2)}" if np.isfinite(row["se"]) else "")
        for row in divergence.to_dict("records")
    ]
    weights = pool.config["token_weights"].items()
    text = ", ".join(f"{name} {value}" for name, value in weights if value is not None)
    return (
        f"{_counted(pool)} by an older policy; their mean reward {pool.rewards.mean():.3f}\n"
        + "".join(f"{line}\n" for line in _returning(pool))
        + f"weights of tokens: {text}; {percent(bound_share)} of tokens are bounded\n"
        f"KL of the older policy to this one, a completion ± standard error: {', '.join(cells)}\n"
    )


def interval_lines(found: Estimates) -> str:
    """A table of c1, c2, c3 and G* with intervals, and reasons for unknown ends."""
    from tabulate import tabulate

    names = {name: name for name in ("c1", "c2", "c3")} | {"g_star": "G*, exact, 1 + √(c3/c1)"}
    rows = [(shown, getattr(found, name)) for name, shown in names.items()]
    lines = [
        [shown, _known(each.value), *(_known(end, _NO_END) for end in each.interval)]
        for shown, each in rows
    ]
    table = str(tabulate(lines, ["", "value", "95% from", "to"], disable_numparse=True))
    return "\n".join([table, *reasons(found.not_known)])


def _known(value: float, infinite: str = "not known") -> str:
    """The number, or the reason why there is none."""
    return readable(value, 4) if math.isfinite(value) else infinite if value > 0 else "not known"


def reasons(not_known: Mapping[str, str]) -> list[str]:
    """Sentences on why ends of intervals are not known."""
    names = {"signal": "‖g‖²"}
    return [
        f"The upper end of {names.get(name, name)} is not known: {reason}."
        for name, reason in not_known.items()
        if name != "vanilla"
    ]
