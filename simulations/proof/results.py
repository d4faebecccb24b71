"""The results that have a proof, and the reasons that others have none."""

from ustat_pg.validation import needed

with needed("a proof by computer algebra", "proof"):
    from . import counts, linear, parts, plans  # noqa: F401
    from .statement import BY_STEM, Statement, equal_at

__all__ = ["BY_STEM", "NOT_PROVED", "Statement", "equal_at"]

NOT_PROVED = {
    "suboptimality": "a bound of whole runs by suprema, which are no rational functions",
    "gradient_mse_lm": "an experiment on language models; its formulas are those of mse",
    "group_size_lm": "an experiment on language models; its formulas are those of group_size",
    "limit_law": "a limit in law",
    "oracle_policy": "limits of whole runs; the difference of both covariances is proved",
    "optimal_policy": "an order of limit laws",
    "normalised": "a limit as G grows; the coefficients of its error are proved",
    "practical_mse": "an expansion in the learning rate",
    "arcsine": "a limit as G grows; what is climbed at each G is proved",
}
"""Results without a proof by algebra, or with a proof of only a part, and the reasons."""
