"""The metric of an optimizer's step: the diagonal P with which Adam multiplies the gradient.

Every formula of the gradient's noise holds in any inner product ⟨u, v⟩_P = uᵀ P v with P fixed. A step
P ĝ has the constants of scores multiplied by P^(1/2).
"""

from __future__ import annotations

from typing import Any

from ..validation import InputError, number


def adam_scale(exp_avg_sq: Any, step: float, beta2: float, eps: float) -> Any:
    """The diagonal of P in Adam's step P ĝ, as torch computes it.

    P_j = 1 / (√(v_j / (1 - β₂ᵗ)) + ε)

    Scores are multiplied by its square root. Adam's momentum and 1/(1 - β₁ᵗ) are not part of P: a common
    factor changes neither G* nor the critical budget.

    Source: theory/optimizer_metric.md; ``torch.optim.Adam``.

    Arguments:
        exp_avg_sq: v, a NumPy array or a torch tensor; with ``amsgrad`` its maximum, ``max_exp_avg_sq``.
        step: t, the number of steps that v has seen, at least 1.
        beta2: β₂, from 0 to below 1.
        eps: ε, at least 0.

    >>> import numpy as np
    >>> adam_scale(np.array([0.25, 4.0]), step=1, beta2=0.75, eps=0.0).tolist()
    [1.0, 0.25]
    """
    if number("step", step) < 1:
        raise InputError(f"step is {step:g}: the optimizer must have made at least 1 step")
    if number("beta2", beta2, minimum=0.0) >= 1:
        raise InputError(f"beta2 is {beta2:g}: it must be below 1")
    number("eps", eps, minimum=0.0)
    return 1.0 / ((exp_avg_sq / (1.0 - beta2**step)) ** 0.5 + eps)
