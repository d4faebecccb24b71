"""The results that have a proof, and why others have none."""

from ustat_pg.validation import needed

with needed("a proof by computer algebra", "proof"):
    from . import counts, linear, parts, plans  # noqa: F401
    from .statement import BY_STEM, Statement, equal_at

__all__ = ["BY_STEM", "NOT_PROVED", "Statement", "equal_at"]

NOT_PROVED = {
    "suboptimality": "it bounds whole runs by suprema, which are no rational functions",
    "limit_law": "it is a limit in law",
    "oracle_policy": "it is about limits of whole runs",
    "optimal_policy": "it orders limit laws",
    "normalised": "that it is a limit as G grows; its coefficients are proved",
    "practical_mse": "it is an expansion in the learning rate",
    "arcsine": "it is a limit as G grows",
}
"""Why a result has no proof."""
