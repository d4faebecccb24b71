"""Means of independent parts, functions of such means, and their 95% intervals.

Parts are the prompts of a pool or the steps of a training. What a function of their means owes to each part
is known from the function without it (the jackknife). From these influences come standard errors, and
intervals that follow three things which a normal law forgets:

- *skewness*: few parts are much larger than all others. Ends are those of Student's law through Hall's
  (1992) cubic, which takes the skewness out of a mean over its error, where they are the wider ones: parts
  that were not seen may have made it look skewed to the other side. What k parts carry is more skewed than
  it looks, by about 2/k of it;
- *heavy tails*: an error estimated from parts of kurtosis κ has about 2n/(κ - 1) degrees of freedom;
- *what was not seen*: where hardly more than two parts carry the spread, parts that are larger still may be
  missing, and the end on their side is not known.
"""

from __future__ import annotations

from .lengths import norm_interval, pairs, product_interval
from .means import (
    ERRORS,
    FEW,
    LIKELY,
    LOW,
    SQUARE,
    Interval,
    Means,
    beside,
    means,
    shape_of,
    student,
    unseen,
)
from .ratios import alignment, log_ratio, ratio, ratio_interval, within

__all__ = [
    "ERRORS", "FEW", "LIKELY", "LOW", "SQUARE", "Interval", "Means", "alignment", "beside", "log_ratio",
    "means", "norm_interval", "pairs", "product_interval", "ratio", "ratio_interval", "shape_of", "student",
    "unseen", "within",
]  # fmt: skip
