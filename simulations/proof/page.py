"""Statements in LaTeX, in the letters of the pages: what the page ``proofs`` shows.

>>> from simulations.proof.linear import GRPO, error
>>> print(latex(by_moment(error(GRPO)).coeff(FISHER)))
\\frac{\\sigma ^2}{G \\left(G - 1\\right)}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ustat_pg.validation import needed

from .counts import X
from .linear import LAW, SQUARE, T0, B, G, K, N, V
from .statement import Statement, equal_at

with needed("a proof by computer algebra", "proof"):
    import sympy

SIZES = {G, B, N, K}
VARIANCE, FISHER, SINGLE = sympy.symbols("σ² φ τ", positive=True)
CROSS = sympy.Symbol("E[‖s‖² a]", real=True)
CENTRED = {
    LAW.moment("z z"): VARIANCE + V**2,
    LAW.moment("s s z"): CROSS + V * FISHER,
    LAW.moment("s s z z"): SINGLE + SQUARE + 2 * V * CROSS + V**2 * FISHER,
    T0: FISHER,
}
"""Moments of rewards by those of advantages, a = z - V."""

LETTERS = {
    "E[z]": "V",
    "φ": r"\operatorname{tr} F",
    "τ": r"\operatorname{tr} \Sigma",
    "E[s z]": "g",
    "‖E[s z]‖²": r"\lVert g \rVert^2",
    "‖E[g]‖²": r"\lVert g \rVert^2",
    "E[‖g‖²]": r"\mathbb{E} \lVert g(X) \rVert^2",
}
PARTS = (
    (r"‖([^‖]*)‖", r"\\lVert \1 \\rVert"),
    (r"E(?=[\[ \\])", r"\\mathbb{E}"),
    (r"tr ?(?=F|C)", r"\\operatorname{tr} "),
    (r"Cov\(ĝ\|X\)", r"\\operatorname{Cov}(\\hat g \\mid X)"),
    ("⟨", r"\\langle "),
    ("⟩", r"\\rangle "),
    ("²", "^2"),
    ("⁴", "^4"),
    ("³", "^3"),
    (r"^a([01])(\d+)$", r"a_\1(\2)"),
    (r"(\^\d)(?=\w)", r"\1 "),
    (r"^([cδ])(\d+)$", r"\1_{\2}"),
    (r"^([ab])_(\d+)_(\d+)$", r"\1(\2, \3)"),
    (r"_(\w\w+)$", r"_{\\text{\1}}"),
    ("β", r"\\beta "),
    ("δ", r"\\delta "),
    ("λ", r"\\lambda "),
    ("σ", r"\\sigma "),
)
"""Parts of a symbol's name, and what stands for them."""

LONGEST = 66
"""Letters of a formula that still has room in a table, without commands of LaTeX."""


def latex(expression: Any) -> str:
    """LaTeX of an expression."""
    names = {symbol: _name(symbol.name) for symbol in sympy.sympify(expression).free_symbols}
    return str(sympy.latex(expression, symbol_names=names))


def _name(name: str) -> str:
    if name in LETTERS:
        return LETTERS[name]
    if name.startswith("Σ"):
        outputs = name.removeprefix("Σ").strip().split("·")
        outputs.sort(key=lambda output: "s" not in output)
        places = "ijkl"[: len(outputs)]
        taken = [
            re.sub(r"([a-z])", rf"\1_{place}", output)
            for output, place in zip(outputs, places, strict=True)
        ]
        under = r" \ne ".join(places)
        name = rf"\sum_{{{under}}} {' '.join(taken)}"
    for written, shown in PARTS:
        name = re.sub(written, shown, name)
    return name


def centred(expression: Any) -> Any:
    """The same in moments of advantages; sums in which no size stands are put in few terms."""
    return (
        sympy.sympify(expression)
        .subs(CENTRED)
        .replace(
            lambda part: part.is_Add and not part.free_symbols & SIZES,
            lambda part: sympy.factor(sympy.expand(part)),
        )
    )


def by_moment(expression: Any) -> Any:
    """The same as a sum over products of moments, each with its coefficient factored."""
    whole = sympy.sympify(expression).subs(CENTRED)
    if sympy.denom(sympy.together(whole)).free_symbols - SIZES:
        return sympy.factor(whole)
    found: dict[Any, Any] = {}
    for term in sympy.Add.make_args(sympy.expand(whole)):
        coefficient, moments = term.as_independent(*whole.free_symbols - SIZES, as_Add=False)
        found[moments] = found.get(moments, 0) + coefficient
    return sympy.Add(*(sympy.factor(c) * moments for moments, c in found.items()))


def one_of(expression: Any) -> tuple[Any, int | None]:
    """Of values kept apart by powers of a letter the first from the square on that is not 0; else all."""
    whole = sympy.sympify(expression)
    if not whole.has(X):
        return whole, None
    found: dict[Any, Any] = {}
    for term in sympy.Add.make_args(whole if whole.is_Add else sympy.expand(whole)):
        value, power = term.as_independent(X)
        found[power] = found.get(power, 0) + value
    for power in range(2, 13):
        if (value := sympy.expand(found.get(X**power, 0))) != 0:
            return sympy.factor(value), power
    raise ValueError(f"no value at any power in {whole}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(statements: Iterable[Statement]) -> str:
    """Statements and wrong formulas of a result, in Markdown.

    A statement has what is derived, moment by moment, over the closed form in its shortest form; once, where
    they look alike. A wrong formula has its difference from the right one, and the group sizes at which it is
    right.
    """

    def shown(of: Statement, expression: Any, *forms: Any) -> str:
        value, power = one_of(expression)
        text = min((latex(form(value)) for form in forms), key=len)
        sizes = f"at $G = {power}$: " if of.scope.startswith("G to") else "one of them: "
        where = sizes if power is not None else ""
        return (
            f"{where}${text}$"
            if len(re.sub(r"\\[A-Za-z]+|[{}^_ ]", "", text)) <= LONGEST
            else "long"
        )

    def off(of: Statement, error: Any) -> str:
        equal = ", ".join(f"$G = {size}$" for size in equal_at(error))
        where = f"; equal at {equal}" if equal else ""
        return shown(of, error, lambda value: sympy.factor(centred(value))) + where

    def sides(of: Statement) -> str:
        derived = shown(of, of.derived, by_moment)
        formula = shown(of, of.formula, centred, by_moment)
        sign = "=" if of.proved else r"\ne"
        return derived if derived == formula else f"{derived}<br><br>${sign}$ {formula}"

    statements = list(statements)
    proved = [
        (
            _plain(each.what),
            _plain(each.scope) if each.proved else "NOT PROVED",
            sides(each),
        )
        for each in statements
    ]
    rivals = [
        (_plain(name), _plain(each.what), off(each, error))
        for each in statements
        for name, error in each.errors.items()
    ]
    parts = [table(["statement", "proved for", "derived = closed form"], proved)]
    if rivals:
        parts.append(table(["wrong formula", "of", "less the right one"], rivals))
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    return text.replace("*", r"\*")
