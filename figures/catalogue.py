"""All figures by name, in the paper's order; then those of language models.

A claim declares its own beside its points; what no declaration can say has a drawing function here.
"""

from __future__ import annotations

from simulations import STEMS, figures_of
from simulations.evidence.figure import Figure

from . import gradient_mse_lm, group_size_lm, limit_law, optimality, suboptimality, verdicts

_DRAWN = {
    "optimality": optimality.FIGURES,
    "suboptimality": suboptimality.FIGURES,
    "limit_law": limit_law.FIGURES,
}

PICTURES: dict[str, Figure] = {
    figure.name: figure
    for figures in (
        verdicts.FIGURES,
        *((*_DRAWN.get(stem, ()), *figures_of(stem)) for stem in STEMS),
        gradient_mse_lm.FIGURES,
        group_size_lm.FIGURES,
    )
    for figure in figures
}
