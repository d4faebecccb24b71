"""Means of independent parts, functions of these means, and their 95% intervals.

Parts are the prompts of a pool or the steps of a training. The influence of a part on a function of the means
is known from the function without this part (the jackknife). The influences give standard errors, and
intervals that include three effects which a normal law ignores:

- *skewness*: few parts are much larger than all others. Ends come from Student's law through Hall's (1992)
  cubic, which removes the skewness of a mean over its error, if they are the wider ones: unseen parts may
  make the law look skewed to the other side. The skewness of what k parts carry is about 2/k
  larger than it looks;
- *heavy tails*: an error estimated from parts of kurtosis κ has about 2n/(κ - 1) degrees of freedom;
- *unseen parts*: if hardly more than two parts carry the spread, even larger parts may be missing, and the
  end on their side is not known.
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
