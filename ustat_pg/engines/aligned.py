"""Arrays for the lanes of the cpu engines. No vector of them crosses the border of a cache line."""

from __future__ import annotations

import numpy as np

from ..execution.compiled import body

LINE = 8
"""The number of 64-bit numbers in a cache line."""


@body(apart=True)
def empty_lines(numbers):
    """An uninitialised array of 64-bit numbers that starts at a cache line, (numbers,)."""
    whole = np.empty(numbers + LINE)
    skipped = -(whole.ctypes.data // 8) % LINE
    return whole[skipped : skipped + numbers]
