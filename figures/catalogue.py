"""All figures by name, in the paper's order; then those of language models."""

from __future__ import annotations

from . import (
    arcsine,
    best_baseline,
    count_advantages,
    gradient_mse_lm,
    group_size,
    group_size_lm,
    length_weights,
    limit_law,
    minibatch,
    mse,
    normalised,
    optimal_policy,
    optimality,
    oracle,
    oracle_policy,
    practical_mse,
    suboptimality,
    verdicts,
)
from .picture import Picture

__all__ = ["ALT", "PICTURES"]

PICTURES: dict[str, Picture] = {
    picture.name: picture
    for module in (
        verdicts,
        mse,
        minibatch,
        oracle,
        optimality,
        suboptimality,
        group_size,
        limit_law,
        oracle_policy,
        optimal_policy,
        normalised,
        practical_mse,
        arcsine,
        count_advantages,
        best_baseline,
        length_weights,
        gradient_mse_lm,
        group_size_lm,
    )
    for picture in module.PICTURES
}

ALT = {name: picture.alt for name, picture in PICTURES.items()}
"""What is seen, in one sentence, for pages and reports that show the figure."""
