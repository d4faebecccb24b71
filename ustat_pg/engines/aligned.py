"""Arrays for the lanes of the cpu engines: no vector of them lies across two cache lines."""

from __future__ import annotations

import numpy as np

from ..execution.compiled import body

LINE = 8
"""Numbers in a cache line."""


@body(apart=True)
def empty_lines(numbers):
    """Numbers of 64 bits that begin where a cache line does, not filled, (numbers,)."""
    whole = np.empty(numbers + LINE)
    skipped = -(whole.ctypes.data // 8) % LINE
    return whole[skipped : skipped + numbers]
