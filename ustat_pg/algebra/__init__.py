"""Computer algebra of estimators. It is exact for every group size and every law of scores and rewards.

:class:`LinearEstimator` is for users: the mean and the error of an estimator of their own, as formulas in G.
"""

from ..validation import needed

with needed("a proof by computer algebra", "proof"):
    from .linear import MOMENTS, G, LinearEstimator, V, rational_function, written
    from .sums import Law, Output, Sum, counted, distinct, patterns

__all__ = [
    "MOMENTS",
    "G",
    "Law",
    "LinearEstimator",
    "Output",
    "Sum",
    "V",
    "counted",
    "distinct",
    "patterns",
    "rational_function",
    "written",
]
