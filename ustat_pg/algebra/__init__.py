"""Computer algebra of estimators. It is exact for every group size and every law of scores and rewards."""

from ..validation import needed

with needed("a proof by computer algebra", "proof"):
    from .sums import Law, Output, Sum, counted, distinct, patterns

__all__ = ["Law", "Output", "Sum", "counted", "distinct", "patterns"]
