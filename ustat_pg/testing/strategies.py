"""A Hypothesis strategy for tests of your own: ``pip install 'ustat_pg[testing]'``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..validation import InputError, finite_array
from .function import Array, whole_numbers

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def rewards(
    group_size: int | tuple[int, int] = (2, 8),
    *,
    batch: int | tuple[int, ...] = (),
    values: Sequence[float] | None = None,
) -> SearchStrategy[Array]:
    """Hypothesis strategy: rewards of groups, batch + (G,), that shrink towards zero.

    Multiples of 1/16 in [-4, 4], so that sums and shifts are exact in floating point.

    Arguments:
        group_size: G >= 2, or the least and the greatest.
        batch: leading axes.
        values: the values a reward can take instead, e.g. (0, 1); they shrink to the first.

    >>> import hypothesis
    >>> @hypothesis.given(rewards(4, batch=2))
    ... def test(z):
    ...     assert z.shape == (2, 4)
    >>> test()
    """
    try:
        from hypothesis import strategies as st
        from hypothesis.extra import numpy as arrays
    except ImportError:
        raise ImportError(
            "Hypothesis is not installed, and strategies need it: pip install 'ustat_pg[testing]'"
        ) from None
    low, *high = whole_numbers("group size", group_size, 2)
    if len(high) > 1 or (high and high[0] < low):
        raise InputError(f"group size is {group_size!r}: it must be a number or (least, greatest)")
    shape = () if batch == () else whole_numbers("batch", batch, 1)
    if values is None:
        elements = st.integers(-64, 64).map(lambda k: k / 16)
    else:
        elements = st.sampled_from(finite_array("values", values, 1).tolist())
    return st.integers(low, *(high or [low])).flatmap(
        lambda size: arrays.arrays(np.float64, (*shape, size), elements=elements)
    )
