"""Optimizers of training runs: what a step makes of the gradients so far.

Records here say which, with what numbers; the steps are torch's own, on each run's parameters apart.
None has weight decay, which would change what is maximised. This module needs no torch.
"""

from __future__ import annotations

from typing import Any

from ...validation import InputError, field, integer, number, one_of, positive, record

__all__ = ["OPTIMIZERS", "Adam", "Muon", "Optimizer", "Sgd", "optimizer_of"]


def _decay(name: str, value: Any) -> float:
    return number(name, value, minimum=0.0, below=1.0)


@record(eq=True)
class Sgd:
    """Plain stochastic ascent, θₜ = θₜ₋₁ + ηₜ ĝₜ.

    >>> optimizer_of("sgd")
    Sgd()
    """


@record(eq=True)
class Adam:
    """Adam, ``torch.optim.Adam``: θₜ = θₜ₋₁ + ηₜ m̂ₜ / (√v̂ₜ + ε), entry by entry.

    m̂ₜ and v̂ₜ are running means of ĝ and ĝ², corrected for their start at 0.

    Arguments:
        beta1: weight of the past in m, 0 <= β₁ < 1.
        beta2: weight of the past in v, 0 <= β₂ < 1.
        eps: ε > 0.

    Raises:
        InputError: a number outside its range.

    >>> Adam(beta1=0.0)
    Adam(beta1=0.0, beta2=0.999, eps=1e-08)
    """

    beta1: float = field(_decay, default=0.9)
    beta2: float = field(_decay, default=0.999)
    eps: float = field(positive, default=1e-8)


def _adam(name: str, value: Any) -> Adam:
    if not isinstance(value, Adam):
        raise InputError(f"{name} is {value!r}: it must be an Adam")
    return value


def _iterations(name: str, value: Any) -> int:
    if integer(name, value) >= 100:
        raise InputError(f"{name} is {value}: it must be below 100")
    return int(value)


@record(eq=True)
class Muon:
    """Muon, ``torch.optim.Muon``, for the matrices of hidden layers, and Adam for all else.

    A matrix steps along its momentum's orthogonal factor, found by Newton-Schulz iterations in
    bfloat16, with the momentum of Nesterov.

    Arguments:
        momentum: weight of the past in the momentum, 0 <= μ < 1.
        ns_steps: Newton-Schulz iterations, 1 to 99.
        adjust_lr_fn: how the rate depends on a matrix's shape, one of torch's two ways; with
            ``match_rms_adamw`` one rate serves matrices and Adam alike.
        adam: what steps embeddings, the head, biases and norms.

    Raises:
        InputError: a number outside its range, or a way that torch does not have.

    >>> Muon(momentum=1.0)
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: momentum is 1.0: it must lie between 0 and 1
    """

    momentum: float = field(_decay, default=0.95)
    ns_steps: int = field(_iterations, default=5)
    adjust_lr_fn: str = field(
        one_of, default="match_rms_adamw", allowed=("match_rms_adamw", "original")
    )
    adam: Adam = field(_adam, default=Adam())


Optimizer = Sgd | Adam | Muon

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "muon": Muon}
"""The optimizers by name, with torch's own numbers."""


def optimizer_of(asked: str | Optimizer) -> Optimizer:
    """An optimizer itself, or that of a name.

    Raises:
        InputError: neither.

    >>> optimizer_of("lion")
    Traceback (most recent call last):
    ...
    ustat_pg.validation.InputError: optimizer 'lion' is unknown: choose one of sgd, adam, muon
    """
    if isinstance(asked, Optimizer):
        return asked
    return OPTIMIZERS[one_of("optimizer", asked, OPTIMIZERS)]()
