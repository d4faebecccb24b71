"""Predictions: closed forms that read moments and nothing else."""

from .mse import (
    DESIGNS,
    MsePrediction,
    explicit_bound,
    gradient_covariance,
    gradient_mse,
    grpo_beats_vanilla,
    minimum_variance_gain,
    oracle_beats_vanilla,
    oracle_ratio,
)

__all__ = [
    "DESIGNS",
    "MsePrediction",
    "explicit_bound",
    "gradient_covariance",
    "gradient_mse",
    "grpo_beats_vanilla",
    "minimum_variance_gain",
    "oracle_beats_vanilla",
    "oracle_ratio",
]
