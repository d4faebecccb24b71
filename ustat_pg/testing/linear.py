"""An advantage function's own formula: coefficients read at several group sizes, mean and error for all."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..rounding import DERIVED, GIVEN, SINGLE
from ..validation import InputError
from .function import Array, UnderTest, relative_tolerance, show

if TYPE_CHECKING:
    from ..algebra import LinearEstimator

SIZES = range(2, 21)
"""The group sizes at which coefficients are read."""


class NoFormulaError(InputError):
    """A function that has no formula of this kind; the message says why."""


def linear_formula(
    function: Callable[..., Any],
    *,
    layout: str = "batched",
    array: Callable[[Any], Any] | None = None,
    rtol: float = GIVEN,
) -> LinearEstimator:
    """The mean and the error of an advantage function that is linear in the rewards, as formulas in G.

    A_i = α z_i + β Σ_{j≠i} z_j + γ,   E ĝ = α g,   for every law of scores and rewards.

    α, β and γ are read at each G from 2 to 20, and the simplest rational functions of G with these values are
    taken. What follows from them is derived by computer algebra for every G and every law. That the function
    has these coefficients beyond G = 20 is an extrapolation, for it is never called there.

    The function is called with symbols for the rewards if it takes them; then it is linear for all rewards,
    but for a comparison such as ``z == 0``, which symbols do not meet. It is also called with numbers: with
    0, with single rewards and with draws. A function with symbols of yours for its constants is called with
    symbols alone; ``ustat_pg.algebra.V`` stands for the value of the prompt.

    Arguments:
        function, array: arguments of :func:`assert_unbiased`.
        layout: ``"batched"`` or ``"group"``.
        rtol: allowed difference from linearity relative to rewards and advantages; 1e-5 for single precision.

    Raises:
        NoFormulaError: the function is not linear, does not treat outputs alike, or has coefficients that are
            no rational functions of G.
        MissingPackageError: the package of computer algebra is not installed.

    >>> print(linear_formula(lambda z: z - z.mean(-1, keepdims=True)))
    advantage    z_i (G - 1)/G - Σ_{j≠i}z_j/G
    mean         g (G - 1)/G
    error        τ (G - 1)²/G³ + tr F σ² (G - 1)/G³ - ‖g‖² (G² - 4 G + 2)/G³
    coefficients read at G = 2 to 20, from symbols for the rewards
    """
    from ..algebra import LinearEstimator, rational_function

    under = UnderTest(function, layout, ("rewards",), array, rtol)
    if layout == "minibatch":
        raise InputError("layout is 'minibatch': a formula is of groups that stand alone")
    tolerance, read, symbols = relative_tolerance(rtol), {}, True
    for size in SIZES:
        exact = _of_symbols(under, size)
        if exact is not None and any(value.free_symbols for value in exact):
            read[size] = exact
            continue
        numbers = _of_numbers(under, size, tolerance)
        if exact is None or not np.allclose(_floats(exact), _floats(numbers), GIVEN, GIVEN):
            symbols, exact = False, numbers
        read[size] = exact
    found = []
    for place, what in enumerate(("own reward", "other rewards", "constant")):
        values = {size: row[place] for size, row in read.items()}
        formula = rational_function(values)
        if formula is None:
            some = ", ".join(f"{_short(values[size])} at G = {size}" for size in (2, 4, SIZES[-1]))
            raise NoFormulaError(
                f"{under.name} has no formula in G: the coefficient of its {what} is {some}, and no simple "
                f"rational function of G has its values at G = {SIZES[0]} to {SIZES[-1]}{under.hint}"
            )
        found.append(formula)
    how = "from symbols for the rewards" if symbols else "from numbers, up to rounding"
    own, other, offset = found
    return LinearEstimator(own, other, offset, f"read at G = {SIZES[0]} to {SIZES[-1]}, {how}")


Coefficients = tuple[Any, Any, Any]
"""α, β and γ at one group size."""


def _short(value: Any) -> str:
    return str(value) if getattr(value, "free_symbols", None) else f"{float(value):.4g}"


def _floats(read: Coefficients) -> list[float]:
    return [float(value) for value in read]


def _alike(under: UnderTest, size: int, matrix: Any, offset: Any) -> Coefficients:
    """The coefficients of a matrix that treats outputs alike."""
    rows = range(size)
    if (
        len({matrix[i][i] for i in rows}) > 1
        or len({matrix[i][j] for i in rows for j in rows if i != j}) > 1
        or len(set(offset)) > 1
    ):
        raise NoFormulaError(
            f"{under.name} does not treat the outputs of a group alike: at G = {size} its coefficients "
            "differ from output to output"
        )
    return matrix[0][0], matrix[0][1], offset[0]


def _of_symbols(under: UnderTest, size: int) -> Coefficients | None:
    """The coefficients from one call with symbols; None if the function does not take them."""
    import sympy

    if under.array is not None:
        return None
    rewards = [sympy.Dummy(f"z{i}") for i in range(size)]
    group = np.array(rewards if under.layout == "group" else [rewards], dtype=object)
    try:
        answer = np.asarray(under._answer([group.copy()]), dtype=object)
        # Raises an error if it is not linear.
        matrix, minus = sympy.linear_eq_to_matrix(list(answer.reshape(-1)), rewards)
    except Exception:
        return None
    if answer.shape != group.shape:
        return None

    def exact(value: Any) -> Any:
        floats = {f: _fraction(float(f), single=False) for f in value.atoms(sympy.Float)}
        return sympy.factor(value.xreplace({f: sympy.Rational(q) for f, q in floats.items()}))

    table = [[exact(value) for value in row] for row in matrix.tolist()]
    return _alike(under, size, table, [exact(-value) for value in minus])


def _of_numbers(under: UnderTest, size: int, tolerance: float) -> Coefficients:
    """The coefficients from calls with 0, with single rewards, and with draws that must agree."""
    import sympy

    rng = np.random.default_rng(size)
    draws = rng.integers(-64, 65, (8, size)) * 2.0 ** np.arange(-12, 12, 3)[:, None]
    rewards = np.concatenate([np.zeros((1, size)), np.eye(size), np.ones((1, size)), draws])
    answers = under.of(rewards=rewards)
    offset = answers[0]
    matrix = (answers[1 : size + 1] - offset).T
    linear: Array = rewards @ matrix.T + offset
    scale = np.abs(rewards).max(1) + np.abs(answers).max(1)
    off = np.abs(answers - linear).max(1) > tolerance * size * scale
    if off.any():
        i = int(np.flatnonzero(off)[0])
        raise NoFormulaError(
            f"{under.name} is not linear in the rewards: at G = {size} the advantages of {show(rewards[i])} "
            f"are {show(answers[i])}, and those of single rewards add up to {show(linear[i])}{under.hint}"
        )

    def exact(value: float) -> Any:
        return sympy.Rational(_fraction(value, under.single))

    table = [[exact(value) for value in row] for row in matrix]
    return _alike(under, size, table, [exact(value) for value in offset])


def _fraction(value: float, single: bool) -> Fraction:
    """The simple fraction that a number is up to rounding; if there is none, its first twelve digits."""
    simple = Fraction(value).limit_denominator(10**3 if single else 10**6)
    near = abs(float(simple) - value) <= (SINGLE if single else DERIVED) * max(1.0, abs(value))
    return simple if near else Fraction(f"{value:.12g}")
