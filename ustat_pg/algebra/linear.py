"""Estimators that are linear in the rewards: mean and error as formulas in G, derived for every law.

With the scores s and the rewards z of a group, such an estimator treats all outputs alike and is

    ĝ = (1/G) Σ_i s_i A_i,   A_i = α z_i + β Σ_{j≠i} z_j + γ,

where α, β and γ depend on G alone. Nothing here is looked up: :class:`~ustat_pg.algebra.Law` takes the means
of ĝ and ‖ĝ‖², and so this is a second way to Theorem 2 (mse).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy

from ..display.shown import Shown
from ..validation import InputError
from .sums import RAISED, Law, distinct

G, V = sympy.symbols("G V")
"""The group size, and E z at the prompt."""

_LAW = Law(known={"a": 0})
"""The law of score and a = z - V, whose mean is 0."""

_NAMES = {
    _LAW.moment("s s a a"): ("τ", r"\tau"),
    _LAW.moment("s s a"): ("E‖s‖²a", r"\mathbb{E}\lVert s\rVert^2 a"),
    _LAW.moment("s s"): ("tr F", r"\operatorname{tr} F"),
    _LAW.moment("a a"): ("σ²", r"\sigma^2"),
    _LAW.inner("s a", "s a"): ("‖g‖²", r"\lVert g\rVert^2"),
}
"""The moments of an error, with their names as text and in LaTeX."""

MOMENTS = {name: sympy.Symbol(name) for name, _ in _NAMES.values()}
"""The symbols of an error at one prompt: τ = E‖s‖²a², E‖s‖²a, tr F = E‖s‖², σ² = E a² and ‖g‖²."""

_OWN, _OTHERS, _GRADIENT = sympy.symbols("z_i Σ_{j≠i}z_j g")
_LATEX = {MOMENTS[name]: latex for name, latex in _NAMES.values()}


def written(expression: Any) -> str:
    """A formula as text.

    >>> written((G - 1) ** 2 * MOMENTS["τ"] / G)
    'τ (G - 1)²/G'
    """
    raised = re.sub(r"\*\*(\d+)", lambda found: found[1].translate(RAISED), str(expression))
    return raised.replace("*", " ")


@dataclass(frozen=True)
class LinearEstimator(Shown):
    """An estimator that is linear in the rewards, with its mean and its error for every group size and law.

    Arguments:
        own, other, offset: α, β and γ, rational functions of :data:`G`, as numbers, texts or sympy's
            expressions. Other symbols are constants of yours; :data:`V` is the mean reward of the prompt.
        source: where the coefficients are from, in words.

    >>> print(LinearEstimator(1, "-1/(G-1)"))
    advantage    z_i - Σ_{j≠i}z_j/(G - 1)
    mean         g
    error        τ/G + tr F σ²/(G (G - 1)) - ‖g‖² (G - 2)/(G (G - 1))
    """

    own: Any
    other: Any = 0
    offset: Any = 0
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("own", "other", "offset"):
            given = getattr(self, name)
            try:
                value = sympy.nsimplify(
                    sympy.sympify(given, locals={"G": G, "V": V}), rational=True
                )
                rational = value.is_rational_function(G)
            except (sympy.SympifyError, AttributeError, TypeError):
                rational = False
            if not rational:
                raise InputError(f"{name} is {given!r}: it must be a rational function of G")
            object.__setattr__(self, name, sympy.factor(value))

    @property
    def advantage(self) -> str:
        """A_i as text."""
        parts = (self.own * _OWN, self.other * _OTHERS, self.offset)
        return _joined(written(part) for part in parts if part != 0)

    @cached_property
    def mean(self) -> Any:
        """The w with E ĝ = w g, for every law."""
        return sympy.factor(_LAW.mean(self._estimate) / _LAW.moment("s a"))

    @property
    def unbiased(self) -> bool:
        """Whether E ĝ = g for every group size and every law."""
        return bool(self.mean == 1)

    @property
    def upwards(self) -> bool:
        """Whether w > 0 at every group size from 2 on: a rescaled learning rate."""
        if not self.mean.free_symbols <= {G}:
            return False
        above, below = sympy.fraction(self.mean)
        product = sympy.Poly(above * below, G)
        return bool(product.eval(2) > 0) and product.count_roots(2, None) == 0

    @property
    def variance(self) -> Any:
        """tr Cov(ĝ) at one prompt; with w it gives a minibatch's error by Proposition 3 (minibatch)."""
        return sympy.Add(*_terms(self._variance))

    @property
    def error(self) -> Any:
        """E‖ĝ - g‖² at one prompt."""
        return sympy.Add(*self._error)

    def latex(self) -> str:
        r"""The error in LaTeX.

        >>> print(LinearEstimator(1, 0, "-V").latex())
        \frac{\tau}{G} - \frac{\lVert g\rVert^2}{G}
        """
        return _joined(sympy.latex(term, symbol_names=_LATEX) for term in self._error)

    def __str__(self) -> str:
        lines = {
            "advantage": self.advantage,
            "mean": written(self.mean * _GRADIENT),
            "error": _joined(map(written, self._error)),
            "coefficients": self.source,
        }
        return "\n".join(f"{name:12} {text}" for name, text in lines.items() if text)

    def to_dict(self) -> dict[str, Any]:
        """Formulas as texts, for JSON."""
        names = ("own", "other", "offset", "mean", "variance", "error")
        return {name: written(getattr(self, name)) for name in names} | {"source": self.source}

    @cached_property
    def _estimate(self) -> Any:
        """ĝ as a sum over the group, of scores and a = z - V."""
        level = self.offset + (self.own + (G - 1) * self.other) * V
        total = self.own * distinct(G, "s a") + self.other * distinct(G, "s", "a")
        return (total + level * distinct(G, "s")) / G

    @cached_property
    def _variance(self) -> Any:
        square = _LAW.mean(self._estimate * self._estimate)
        return square - self.mean**2 * _LAW.inner("s a", "s a")

    @cached_property
    def _error(self) -> list[Any]:
        bias = (self.mean - 1) ** 2 * _LAW.inner("s a", "s a")
        return _terms(self._variance + bias)


def _terms(error: Any) -> list[Any]:
    """A polynomial of moments, term by term, each with a factored coefficient."""
    moments = list(_NAMES)
    found = []
    for powers, coefficient in sympy.Poly(error, *moments).terms():
        named = [MOMENTS[_NAMES[m][0]] ** k for m, k in zip(moments, powers, strict=True)]
        found.append(sympy.factor(coefficient) * sympy.Mul(*named))
    return [term for term in found if term != 0]


def _joined(terms: Iterable[str]) -> str:
    """Terms as a sum, with the signs that they begin with."""
    return re.sub(r"\+ -\s*", "- ", " + ".join(terms)) or "0"


def rational_function(values: Mapping[int, Any], degree: int = 6) -> Any | None:
    """The rational function of G of least degree with these values; None if there is none.

    Arguments:
        values: values by group size: exact numbers, or polynomials in other symbols with such coefficients.
        degree: the largest degree of numerator and denominator together. There should be many more values,
            since each of the others is a check.

    >>> rational_function({size: sympy.Rational(size - 1, size) for size in range(2, 21)})
    (G - 1)/G
    >>> rational_function({size: sympy.sqrt(size) for size in range(2, 21)})
    """
    given = {size: sympy.sympify(value) for size, value in values.items()}
    constants = sorted(set().union(*(v.free_symbols for v in given.values())), key=str)
    parts: dict[Any, dict[int, Any]] = {}
    for size, value in given.items():
        if constants and not value.is_polynomial(*constants):
            return None
        terms = sympy.Poly(value, *constants).terms() if constants else [((), value)]
        for powers, coefficient in terms:
            name = sympy.Mul(*(c**k for c, k in zip(constants, powers, strict=True)))
            parts.setdefault(name, dict.fromkeys(given, sympy.Integer(0)))[size] = coefficient
    total = sympy.Integer(0)
    for name, numbers in parts.items():
        found = _through(numbers, degree) if all(n.is_Rational for n in numbers.values()) else None
        if found is None:
            return None
        total += found * name
    return total


def _through(values: Mapping[int, Any], degree: int) -> Any | None:
    for both in range(degree + 1):
        for below in range(both + 1):
            above = both - below
            # p(G) - v q(G) = 0 at every size: linear in the coefficients of p and q.
            equations = [
                [size**k for k in range(above + 1)] + [-value * size**k for k in range(below + 1)]
                for size, value in values.items()
            ]
            for solution in sympy.Matrix(equations).nullspace()[:1]:
                p, q = (
                    sum(c * G**k for k, c in enumerate(part))
                    for part in (solution[: above + 1], solution[above + 1 :])
                )
                if all(sympy.sympify(q).subs(G, size) != 0 for size in values):
                    return sympy.factor(p / q)
    return None
