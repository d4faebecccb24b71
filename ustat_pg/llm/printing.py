"""Numbers as people and as JSON read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .pool import ScoredPool

__all__ = [
    "constants_text",
    "facts",
    "finite",
    "noise_table",
    "percent",
    "plain",
    "reading",
    "records",
]

_ROUNDING = 1e-9
"""Half-widths of intervals of a ratio that are nothing."""


def plain(value: float, digits: int = 3) -> str:
    """A number to a few digits, without an exponent where it can be read without one.

    >>> plain(2014.2), plain(0.04531), plain(7.6e-9), plain(0.9999)
    ('2010', '0.0453', '7.6e-09', '1.00')
    """
    shown = float(f"{value:.{digits}g}")
    if not 1e-4 <= abs(shown) < 1e6:
        return f"{value:.{digits}g}"
    return f"{shown:.{max(digits - 1 - math.floor(math.log10(abs(shown))), 0)}f}"


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows as JSON's types: what is not finite becomes null."""
    return [{name: _json(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _json(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finite(value: Any) -> float | None:
    """A number; None where it is not finite, as JSON has it."""
    return float(value) if np.isfinite(value) else None


def percent(value: float) -> str:
    """A share to a tenth of a percent; a dash where it is not known."""
    return f"{value:.1%}" if np.isfinite(value) else "-"


def noise_table(frame: Any) -> str:
    """What ``noise_to_signal`` found: the first baseline's, and every other's over it."""
    from tabulate import tabulate

    first, *others = dict.fromkeys(frame["baseline"])
    sizes = list(dict.fromkeys(frame["group_size"]))
    rows = {name: [name] for name in (first, *others)}
    for row in frame.to_dict("records"):
        name = row["baseline"]
        kind, low, high = (
            ("ratio", "low", "high")
            if name == first
            else ("relative", "relative_low", "relative_high")
        )
        half = (row[high] - row[low]) / 2
        width = plain(half, 2) if math.isfinite(half) else "∞"
        if not math.isfinite(row[kind]):
            cell = "-"
        elif name == first:
            end = plain(row[high], 2) if math.isfinite(row[high]) else "∞"
            cell = f"{plain(row[kind])} [{plain(row[low], 2)}, {end}]"
        else:
            # A multiple of the first has its ratio, but for rounding.
            cell = plain(row[kind]) + (f" ± {width}" if half > _ROUNDING else "")
        rows[name].append(cell)
    header = ["", *(f"G={size}" for size in sizes)]
    table = tabulate(list(rows.values()), header, disable_numparse=True, stralign="right")
    return (
        f"{table}\n\nNoise over signal, tr Cov ĝ/‖E ĝ‖², prompts drawn anew: for {first} that of one group "
        f"[95%], to be divided by\nthe prompts of a step; for the others in units of {first}'s, ± half a 95% "
        "interval of the paired difference."
    )


def reading(orders: Sequence[Any]) -> str:
    """Whether vanilla > grpo > oracle, the paper's reading of Figure 4, holds here."""
    words = []
    for order in orders:
        size = int(order["group_size"].iloc[0])
        fails = order[order["reading"] == "fails"]
        known = [r for r in order["reading"] if r not in ("none", "fails")]
        if len(fails):
            said = ", ".join(
                f"{r['larger']} above {r['second'] if r['larger'] == r['first'] else r['first']}"
                for r in fails.to_dict("records")
            )
            words.append(f"G={size} fails ({said})")
        else:
            word = next((name for name in ("open", "tie") if name in known), "holds")
            words.append(f"G={size} {word}")
    return "The paper's reading, vanilla above grpo above the oracle: " + "; ".join(words) + "."


def facts(pool: ScoredPool, summary: Any) -> str:
    """A scored pool and its summary, before the tables."""
    known = summary.set_index("name")
    value, low, high = (float(known.loc["pass_rate", name]) for name in ("value", "low", "high"))
    correlation, best, mixed = (
        float(known.loc[name, "value"]) for name in ("correlation", "best_less_value", "mixed")
    )
    z = pool.on_policy_z
    lines = [
        f"{pool.config.get('model', 'a pool')}: {pool.size} prompts, {pool.rollouts} rollouts of "
        f"each; mean reward {value:.3f} [{low:.3f}, {high:.3f}]",
        _precision(pool),
        f"on-policy test: {'none on record' if z is None else f'z = {z:+.1f}'}",
        f"correlation of ‖s‖² and reward {correlation:.2f}; b* - V, weighted by ‖s‖², {best:.3f}; rewards "
        f"differ on {mixed:.0%} of prompts\n",
    ]
    if pool.looks > 1:
        level = (
            f"95% is that of all {pool.looks} looks together, {1 - 0.05 / pool.looks:.1%} of each"
        )
        lines.insert(2, level)
    return "\n".join(lines)


def _precision(pool: ScoredPool) -> str:
    """In which precision the scores were made, and what that may cost."""
    weights = pool.config.get("dtype")
    if weights is None:
        return "precision of the scores: not on record"
    cast = bool(pool.config.get("autocast_bf16"))
    told = f"precision of the scores: weights {weights}" + (", autocast bfloat16" if cast else "")
    coarse = cast or any(name in weights for name in ("bfloat16", "float16"))
    return told + ("; norms may be off by up to a tenth" if coarse else "")


def constants_text(known: Any) -> str:
    """c1, c2, c3 and G*, each with its interval."""
    lines = []
    for name in ("c1", "c2", "c3"):
        low, high = known.interval(name)
        lines.append(f"{name} {getattr(known, name):10.4g}  [{low:.4g}, {high:.4g}]")
    for text, kind in (("exact, 1 + √(c3/c1)", "exact"), ("the paper's √(c3/c1)", "paper")):
        value = known.g_star_exact if kind == "exact" else known.g_star_paper
        low, high = known.g_star_interval(kind)
        end = "no upper end" if not np.isfinite(high) else f"{high:.3g}"
        shown = "none" if value is None else f"{value:.3g}"
        lines.append(f"G*, {text:22} {shown:>8}  [{low:.3g}, {end}]")
    return "\n".join(lines)
