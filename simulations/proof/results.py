"""The results that have a proof, and the reasons that others have none."""

from collections.abc import Callable, Iterator

from ustat_pg.validation import needed

with needed("a proof by computer algebra", "proof"):
    from . import counts, linear, memory, parts, plans, prompts
    from .statement import Statement, equal_at

__all__ = ["BY_STEM", "NOT_PROVED", "Statement", "equal_at"]

BY_STEM: dict[str, Callable[[], Iterator[Statement]]] = {
    "ustatistic": linear.lemma_1,
    "mse": linear.theorem_2,
    "minibatch": linear.proposition_3,
    "oracle": linear.corollary_4,
    "optimality": linear.corollary_5,
    "group_size": linear.theorem_7,
    "oracle_policy": linear.corollary_9,
    "normalised": linear.lemma_11,
    "arcsine": counts.proposition_13,
    "count_advantages": counts.beyond_1,
    "best_baseline": counts.beyond_2,
    "length_weights": linear.beyond_3,
    "adaptive_groups": plans.beyond_4,
    "survivors": parts.beyond_5,
    "turns": parts.beyond_6,
    "reuse": linear.beyond_7,
    "prompt_sampling": prompts.beyond_8,
    "reward_memory": memory.beyond_9,
}
"""The function that yields the statements of each result, in the paper's order."""

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
    "reuse": "an expansion in the learning rate; its coefficient is proved",
}
"""Results without a proof by algebra, or with a proof of only a part, and the reasons."""
