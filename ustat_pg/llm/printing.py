"""Numbers as people and as JSON read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["finite", "percent", "plain", "records"]


def plain(value: float, digits: int = 3) -> str:
    """A number to a few digits, without an exponent where it can be read without one.

    >>> plain(2014.2), plain(0.04531), plain(7.6e-9)
    ('2010', '0.0453', '7.6e-09')
    """
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):.{max(places, 0)}f}"


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
