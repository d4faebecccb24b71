"""Results proved by computer algebra, for every group size and every law of scores and rewards.

A statement compares two expressions. One is derived: :mod:`ustat_pg.algebra` expands an estimator's
definition, pattern by pattern, and computes means. The other is the closed form that users call, from
:mod:`ustat_pg.predictions.closed_forms`, with symbols instead of numbers. They are equal if their
difference is 0 as a rational function. A rival is a wrong formula; its difference, factored, shows where it
is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ustat_pg.validation import needed

with needed("a proof by computer algebra", "proof"):
    import sympy


EVERY = "every G and every law"


@dataclass(frozen=True)
class Statement:
    """An equality of two expressions.

    Arguments:
        what: the quantity, in words.
        derived: the expression that the algebra derives from the definition.
        formula: the expression of the closed form.
        rivals: wrong formulas, by name.
        scope: the sizes and laws for which it is proved.
    """

    what: str
    derived: Any
    formula: Any
    rivals: Mapping[str, Any] = field(default_factory=dict)
    scope: str = EVERY

    @cached_property
    def difference(self) -> Any:
        """Derived minus formula, factored; 0 if they are equal."""
        return difference(self.derived, self.formula)

    @property
    def proved(self) -> bool:
        """Whether the expressions are equal."""
        return bool(self.difference == 0)

    @cached_property
    def errors(self) -> dict[str, Any]:
        """Each rival minus the formula, factored; 0 if the rival equals the formula."""
        return {name: difference(rival, self.formula) for name, rival in self.rivals.items()}

    @property
    def holds(self) -> bool:
        """Whether the statement is proved and each rival is refuted."""
        return self.proved and all(error != 0 for error in self.errors.values())


_FACTORED = 60
"""The most terms of a polynomial that is factored."""


def difference(one: Any, two: Any) -> Any:
    """The difference of two rational functions in factors; for long polynomials it stays a sum."""
    whole = sympy.expand(sympy.sympify(one - two))
    if whole == 0 or len(sympy.Add.make_args(whole)) > _FACTORED:
        return whole
    return sympy.factor(sympy.cancel(sympy.together(whole)))


def equal_at(error: Any) -> list[int]:
    """The group sizes from 2 to 64 at which an error is 0 for every law."""
    size = next((symbol for symbol in error.free_symbols if symbol.name == "G"), None)
    if size is None:
        return []
    top = sympy.numer(sympy.together(error))
    return [k for k in range(2, 65) if sympy.expand(top.subs(size, k)) == 0]
