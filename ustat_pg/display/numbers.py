"""Numbers as a person writes them."""

from __future__ import annotations

import math


def readable(value: float, digits: int = 3, *, padded: bool = False) -> str:
    """A number with a few digits: commas between thousands, and an exponent only for the tiny and the huge.

    Arguments:
        value: a number; one that is not finite is written ``inf`` or ``nan``.
        digits: significant digits.
        padded: whether zeros at the end of a fraction are kept, as in a column of numbers.

    >>> readable(1340.2), readable(0.04531), readable(7.6e-9), readable(2.5e12), readable(136.0, 4)
    ('1,340', '0.0453', '7.6e-9', '2.5e12', '136')
    >>> readable(0.9999), readable(0.9999, padded=True)
    ('1', '1.00')
    """
    if not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits}g}")
    if rounded and not 1e-4 <= abs(rounded) < 1e9:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    places = max(digits - 1 - math.floor(math.log10(abs(rounded))), 0) if rounded else 0
    text = f"{rounded:,.{places}f}"
    return text if padded or "." not in text else text.rstrip("0").rstrip(".")
