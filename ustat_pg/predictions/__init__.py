"""Predictions: closed forms that read moments and nothing else.

Where one takes moments, a problem will do: its own at the parameters that it is at.

>>> from ustat_pg.problems import example_problem, problem_from_mapping
>>> round(gradient_mse(problem_from_mapping(example_problem()), "grpo", group_size=8).mse, 5)
0.04916
"""

from .adaptive import (
    PLAN_ESTIMATORS,
    PlanPrediction,
    best_two_stage,
    known_rates_bound,
    plan_cost,
    plan_mse,
    plan_weight,
    sized_mse,
)
from .adaptive_advice import AdaptiveAdvice, adaptive_advice
from .advice import GroupSizeAdvice, GroupSizeRow
from .budget import critical_budget, near_budget, robust_group_size
from .count_tables import (
    CountTable,
    best_shrinkage,
    best_table,
    count_table,
    mean_gradient,
    silent_share,
)
from .group_size import (
    MseConstants,
    covariance_parts,
    gap_group_size,
    group_size_advice,
    mse_constants,
    optimal_group_size,
    paired_constants,
    paper_group_size,
)
from .lengths import aggregated_mean, length_curl, token_mean_bias
from .limit_law import (
    MixtureLaw,
    conditional_transform,
    finite_covariance,
    finite_law,
    finite_weights,
    gap_transform,
    limit_law,
    limit_weights,
    matrix_correlation,
    mean_gap,
    stationary_covariance,
    sup_distance,
    weight_derivatives,
    weight_form,
)
from .mse import (
    MsePrediction,
    critic_error_at_par,
    critic_excess,
    critic_rollouts_at_par,
    explicit_bound,
    gradient_covariance,
    gradient_mse,
    grpo_beats_vanilla,
    learned_values,
    minimum_variance_gain,
    oracle_beats_vanilla,
    oracle_ratio,
)
from .normalised import (
    normalised_distance,
    normalised_error_of,
    normalised_limit,
    normalised_limit_of,
)
from .objectives import arcsine_objective, bernstein_objective, climbed_maximiser
from .penalties import kl_gradient, kl_penalty
from .practical import leading_ratio_bias, practical_mse, ratio_bias_matrix
from .runs import epoch_gap, linear_gap, one_step_gap
from .suboptimality import bound_curve, constant_bound, constant_floor, decay_constant
from .survivors import SurvivorPrediction, survivor_mse
from .weighted import WeightedPrediction, weighted_mse

__all__ = [
    "PLAN_ESTIMATORS",
    "AdaptiveAdvice",
    "CountTable",
    "GroupSizeAdvice",
    "GroupSizeRow",
    "MixtureLaw",
    "MseConstants",
    "MsePrediction",
    "PlanPrediction",
    "SurvivorPrediction",
    "WeightedPrediction",
    "adaptive_advice",
    "aggregated_mean",
    "arcsine_objective",
    "bernstein_objective",
    "best_shrinkage",
    "best_table",
    "best_two_stage",
    "bound_curve",
    "climbed_maximiser",
    "conditional_transform",
    "constant_bound",
    "constant_floor",
    "count_table",
    "covariance_parts",
    "critic_error_at_par",
    "critic_excess",
    "critic_rollouts_at_par",
    "critical_budget",
    "decay_constant",
    "epoch_gap",
    "explicit_bound",
    "finite_covariance",
    "finite_law",
    "finite_weights",
    "gap_group_size",
    "gap_transform",
    "gradient_covariance",
    "gradient_mse",
    "group_size_advice",
    "grpo_beats_vanilla",
    "kl_gradient",
    "kl_penalty",
    "known_rates_bound",
    "leading_ratio_bias",
    "learned_values",
    "length_curl",
    "limit_law",
    "limit_weights",
    "linear_gap",
    "matrix_correlation",
    "mean_gap",
    "mean_gradient",
    "minimum_variance_gain",
    "mse_constants",
    "near_budget",
    "normalised_distance",
    "normalised_error_of",
    "normalised_limit",
    "normalised_limit_of",
    "one_step_gap",
    "optimal_group_size",
    "oracle_beats_vanilla",
    "oracle_ratio",
    "paired_constants",
    "paper_group_size",
    "plan_cost",
    "plan_mse",
    "plan_weight",
    "practical_mse",
    "ratio_bias_matrix",
    "robust_group_size",
    "silent_share",
    "sized_mse",
    "stationary_covariance",
    "sup_distance",
    "survivor_mse",
    "token_mean_bias",
    "weight_derivatives",
    "weight_form",
    "weighted_mse",
]
