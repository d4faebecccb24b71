"""The objectives of estimators with rewards 0 and 1, as functions of the pass rate (Proposition 13, arcsine).

An estimator that is a table by counts has the mean w(V(x)) g(x) at a prompt, where w is a Bernstein
polynomial of degree G-1 (:mod:`~ustat_pg.predictions.count_tables`). So it ascends E Φ(V(X)) with Φ' = w:

    Φ(p) = (1/G) Σ_m δ(m) P(Binomial(G, p) > m),    m = 0, ..., G-1,

the Bernstein polynomial of degree G with the coefficients (δ(0) + ... + δ(k-1))/G. With division by the
group's deviation (``std``) it is p times a factor at G = 2 and 3, and tends to 2 arcsin √p as G grows:

    w(p) √(p(1-p)) = 1 - 1/(8 G p(1-p)) + O(1/G²).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.typing import ArrayLike
from scipy.special import bdtrc

from ..validation import Array, InputError, number, probabilities, shares
from .closed_forms import arcsine, climbed_objective
from .count_tables import CountTable

_GRID = 101
"""The number of parameters at which the search for a maximum starts; it may miss narrower peaks."""
_DEGREE = 12
"""The degree of the polynomial through the heights around the best parameter."""


def bernstein_objective(table: CountTable, pass_rate: ArrayLike) -> Array:
    """The objective Φ(p) of an estimator at a prompt, with Φ(0) = 0 and Φ' = w; it has the shape of p.

    Arguments:
        table: the estimator's advantages by counts, from :func:`~ustat_pg.predictions.count_table`.
        pass_rate: p in [0, 1].

    >>> from ustat_pg.predictions import count_table
    >>> bernstein_objective(count_table("std", 2), [0.25, 1.0])
    array([0.25, 1.  ])
    >>> bernstein_objective(count_table("std", 64), [0.25, 1.0]).round(3)
    array([0.869, 2.776])
    """
    size = table.group_size
    more = bdtrc(np.arange(size), size, shares("pass rate", pass_rate)[..., None])
    return np.asarray(climbed_objective(table, more))


def arcsine_objective(pass_rate: ArrayLike) -> Array:
    """The objective 2 arcsin √p of the estimator divided by the group's deviation, as G grows.

    Arguments:
        pass_rate: p in [0, 1].

    >>> arcsine_objective([0.25, 1.0]).round(3)
    array([1.047, 3.142])
    """
    return np.asarray(arcsine(shares("pass rate", pass_rate), np.sqrt, np.arcsin))


def climbed_maximiser(
    pass_rates: Callable[[float], ArrayLike],
    objective: Callable[[Array], ArrayLike],
    low: float,
    high: float,
    *,
    context_probs: ArrayLike | None = None,
    penalty: Callable[[float], float] | None = None,
) -> float:
    """The parameter u with the largest E objective(V_u(X)) - penalty(u), at which training ends.

    Arguments:
        pass_rates: function from u to V_u(x) of every prompt, (X,).
        objective: function of pass rates (X,), such as :func:`arcsine_objective`, or ``lambda p:
            bernstein_objective(table, p)``.
        low, high: the ends of the interval that is searched.
        context_probs: ρ(x), (X,) (default: equal).
        penalty: β times a divergence from the reference policy (default: none).

    Raises:
        InputError: the ends are in the wrong order, pass rates are outside [0, 1], or the maximum is at an
            end, so that a larger interval may have a greater one.

    >>> def rates(u):                                # two prompts that pull apart
    ...     return [u, 0.9 * np.sqrt(1 - u)]
    >>> [round(climbed_maximiser(rates, each, 0, 1), 4) for each in (lambda p: p, arcsine_objective)]
    [0.7975, 0.9235]
    >>> from functools import partial
    >>> from ustat_pg.predictions import count_table
    >>> std = {size: partial(bernstein_objective, count_table("std", size)) for size in (2, 4, 8, 64)}
    >>> [round(climbed_maximiser(rates, climbed, 0, 1), 4) for climbed in std.values()]
    [0.7975, 0.8068, 0.8468, 0.9163]
    """
    first, last = number("low", low), number("high", high)
    if not first < last:
        raise InputError(f"the interval is [{first:g}, {last:g}]: low must be below high")
    law = None if context_probs is None else probabilities("context_probs", context_probs, 1)

    def height(u: float) -> float:
        reached = np.asarray(objective(shares("pass rate", pass_rates(u))))
        mean = float(reached.mean() if law is None else law @ reached)
        return mean - (0.0 if penalty is None else float(penalty(u)))

    grid = np.linspace(first, last, _GRID)
    best = int(np.argmax([height(float(u)) for u in grid]))
    if best in (0, _GRID - 1):
        raise InputError(
            f"the objective is greatest at {grid[best]:g}, an end of the interval: take a larger one"
        )
    # The root of the slope of a polynomial through the heights; a search by heights alone has only half the
    # digits.
    near = [float(grid[best - 1]), float(grid[best + 1])]
    curve = Chebyshev.interpolate(np.vectorize(height, otypes=[float]), _DEGREE, near)
    level = curve.deriv().roots()
    inside = level[(level.imag == 0) & (level.real > near[0]) & (level.real < near[1])].real
    return float(max([*inside, float(grid[best])], key=height))
