"""Sums over the different outputs of a group, their products and their means.

An estimator is a sum over the outputs of a group. With scores s and rewards z, grpo is

    (1/G) Σ_i s_i z_i - 1/(G(G-1)) Σ_{i≠j} s_i z_j.

A product of two such sums runs over two tuples of outputs. Some of the outputs of one tuple may be outputs of
the other. Each such choice is a pattern, and within a pattern all outputs differ. A sum over m different
outputs has G (G-1) ... (G-m+1) terms. The mean of a term factorises, because outputs are independent. The
mean score is 0, so every term in which a score stands alone is 0. The result is a rational
function of G and of moments of one output. It needs no random draws and assumes no law.

    >>> import sympy
    >>> G = sympy.Symbol("G")
    >>> total = distinct(G, "z")
    >>> total * total
    Σ z z + Σ z²
    >>> Law().mean(total * total)
    E[z]**2*G*(G - 1) + E[z²]*G
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations, permutations
from math import comb, factorial
from typing import Any

import sympy

from ..validation import InputError

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, order=True)
class Output:
    """The factors that a sum takes from one output: vectors, and powers of numbers.

    Arguments:
        vectors: names of vectors, at most two; two names stand for the inner product.
        powers: names of numbers, and their exponents.
    """

    vectors: tuple[str, ...] = ()
    powers: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, text: str, vectors: Sequence[str] = ("s",)) -> Output:
        """The product that a text such as ``"s z z"`` names."""
        found: dict[str, int] = defaultdict(int)
        for name in text.split():
            found[name] += 1
        inner = tuple(name for name in sorted(found) for _ in range(found[name]) if name in vectors)
        numbers = {name: power for name, power in found.items() if name not in vectors}
        return cls(inner, tuple(sorted(numbers.items())))

    def __mul__(self, other: Output) -> Output:
        powers = defaultdict(int, self.powers)
        for name, power in other.powers:
            powers[name] += power
        return Output(tuple(sorted(self.vectors + other.vectors)), tuple(sorted(powers.items())))

    def __str__(self) -> str:
        numbers = [n + (str(k).translate(RAISED) if k > 1 else "") for n, k in self.powers]
        vectors = [f"‖{self.vectors[0]}‖²"] if len(set(self.vectors)) < len(self.vectors) else []
        return " ".join([*(vectors or self.vectors), *numbers]) or "1"


Member = tuple[Output, ...]
"""The factors that a sum takes from each of several different outputs; their order does not matter."""


class Sum:
    """A combination of sums over different outputs of a group.

    Arguments:
        size: G, a symbol or a number.
        terms: the members, each with its coefficient.
    """

    def __init__(self, size: Any, terms: Mapping[Member, Any]) -> None:
        self.size = sympy.sympify(size)
        found: dict[Member, Any] = defaultdict(lambda: sympy.Integer(0))
        for member, coefficient in terms.items():
            # An output without factors can be any of the remaining outputs.
            rest = tuple(sorted(output for output in member if output != Output()))
            for k in range(len(rest), len(member)):
                coefficient = coefficient * (self.size - k)
            found[rest] += coefficient
        self.terms = {member: c for member, c in found.items() if c != 0}

    def __add__(self, other: Any) -> Sum:
        other = self._of(other)
        keys = [*self.terms, *(k for k in other.terms if k not in self.terms)]
        return Sum(self.size, {k: self.terms.get(k, 0) + other.terms.get(k, 0) for k in keys})

    def __mul__(self, other: Any) -> Sum:
        other = self._of(other)
        found: dict[Member, Any] = defaultdict(lambda: sympy.Integer(0))
        for one, c in self.terms.items():
            for two, d in other.terms.items():
                for member in patterns(one, two):
                    found[member] += c * d
        return Sum(self.size, found)

    def __neg__(self) -> Sum:
        return self * -1

    def __sub__(self, other: Any) -> Sum:
        return self + -self._of(other)

    def __truediv__(self, other: Any) -> Sum:
        return self * (1 / sympy.sympify(other))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Sum:
        return -self + other

    def __pow__(self, power: int) -> Sum:
        return reduce(lambda one, two: one * two, [self] * power, self._of(1))

    def __eq__(self, other: object) -> bool:
        left = (self - other).terms.values()
        return all(sympy.cancel(sympy.together(c)) == 0 for c in left)

    def __repr__(self) -> str:
        def one(member: Member, coefficient: Any) -> str:
            factor = "" if coefficient == 1 else f"({coefficient}) "
            return factor + " ".join(["Σ", *map(str, member)] if member else ["1"])

        return " + ".join(one(*term) for term in self.terms.items()) or "0"

    def subs(self, *given: Any) -> Sum:
        """The sum with numbers or symbols substituted in its coefficients, as by sympy's ``subs``."""
        return Sum(self.size, {k: c.subs(*given) for k, c in self.terms.items()})

    def _of(self, other: Any) -> Sum:
        if isinstance(other, Sum):
            if other.size != self.size:
                raise InputError(
                    f"sums over groups of {self.size} and {other.size}: one group is needed"
                )
            return other
        return Sum(self.size, {(): sympy.sympify(other)})


def distinct(size: Any, *outputs: str, vectors: Sequence[str] = ("s",)) -> Sum:
    """The sum over different outputs of a product: ``distinct(G, "s", "z")`` is Σ_{i≠j} s_i z_j.

    Arguments:
        size: G.
        outputs: the factors of each output, names separated by blanks. An empty text takes no factor
            of an output, but the sum still runs over it.
        vectors: names that are vectors.
    """
    return Sum(size, {tuple(Output.of(text, vectors) for text in outputs): sympy.Integer(1)})


def counted(size: int, outputs: Sequence[str], indicator: str, of: Callable[[int], Any]) -> Sum:
    """A sum over different outputs, times a function of the number of other outputs with an indicator.

    f(m) = Σ_r c_r C(m, r), where c_r is the r-th difference of f at 0 and C(m, r) sums over r outputs.

    Arguments:
        size: G, a number.
        outputs: the factors of each output, as for :func:`distinct`.
        indicator: the name of a number that is 0 or 1.
        of: f.

    >>> counted(2, ["s"], "h", lambda m: 1 / sympy.Integer(1 + m))
    Σ s + (-1/2) Σ h s
    """
    total = Sum(size, {})
    for r in range(size - len(outputs) + 1):
        signed = ((-1) ** (r - k) * comb(r, k) * sympy.sympify(of(k)) for k in range(r + 1))
        total += sum(signed) / factorial(r) * distinct(size, *outputs, *[indicator] * r)
    return total


def patterns(one: Member, two: Member) -> Iterator[Member]:
    """The ways in which outputs of two members can coincide; each way gives a member of the product."""
    for equal in range(min(len(one), len(two)) + 1):
        for left in combinations(range(len(one)), equal):
            for right in permutations(range(len(two)), equal):
                shared = dict(zip(left, right, strict=True))
                joined = [
                    output * two[shared[k]] if k in shared else output
                    for k, output in enumerate(one)
                ]
                alone = [output for k, output in enumerate(two) if k not in right]
                yield (*joined, *alone)


class Law:
    """The law of one output: the names and the known values of its moments. Outputs are independent.

    Arguments:
        vectors: names that are vectors.
        centred: names with mean 0.
        binary: numbers that are 0 or 1, so that their powers are themselves.
        absorbed: for each name, the binary number that is a factor of it: ``{"s": "h"}`` says that
            s is 0 where h is.
        known: known values of moments, by the product in the moment: ``{"z": 0}`` says that E z = 0.
    """

    def __init__(
        self,
        vectors: Sequence[str] = ("s",),
        centred: Sequence[str] = ("s",),
        binary: Sequence[str] = (),
        absorbed: Mapping[str, str] | None = None,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        self.vectors, self.centred, self.binary = tuple(vectors), tuple(centred), tuple(binary)
        self._absorbed, self._known = absorbed or {}, known or {}

    @cached_property
    def known(self) -> dict[Output, Any]:
        """Moments with a known value."""
        return {self._read(text): sympy.sympify(value) for text, value in self._known.items()}

    def moment(self, text: str) -> Any:
        """The mean of a product such as ``"z z"`` or ``"s s z"`` of one output."""
        return self._one(self._read(text))

    def inner(self, one: str, two: str) -> Any:
        """The inner product of two mean vectors, such as that of E[s z] and E[s z z]."""
        return self._product(self._read(one), self._read(two))

    def mean(self, total: Sum) -> Any:
        """The mean of a sum, a rational function of its size and of moments."""
        found = sympy.Integer(0)
        for member, coefficient in total.terms.items():
            expected = self.expected(tuple(map(self._reduced, member)))
            for k in range(len(member) if expected != 0 else 0):
                expected = expected * (total.size - k)
            found += coefficient * expected
        return found

    def expected(self, member: Member) -> Any:
        """The mean of one member."""
        numbers = [self._one(output) for output in member if len(output.vectors) != 1]
        match [output for output in member if len(output.vectors) == 1]:
            case []:
                inner = sympy.Integer(1)
            case [one]:
                inner = self._one(one)
            case [one, two]:
                inner = self._product(one, two)
            case more:
                raise InputError(f"{len(more)} vectors in one product: at most two have a meaning")
        return sympy.Mul(inner, *numbers)

    def _read(self, text: str) -> Output:
        return self._reduced(Output.of(text, self.vectors))

    def _reduced(self, output: Output) -> Output:
        names = {*output.vectors, *(name for name, _ in output.powers)}
        gone = {factor for name, factor in self._absorbed.items() if name in names}
        powers = ((n, 1 if n in self.binary else k) for n, k in output.powers if n not in gone)
        return Output(output.vectors, tuple(powers))

    def _one(self, output: Output) -> Any:
        if output in self.known:
            return self.known[output]
        if output == Output():
            return sympy.Integer(1)
        if len(output.vectors) > 2:
            raise InputError(
                f"{len(output.vectors)} vectors in one product: at most two have a meaning"
            )
        if not output.powers and len(output.vectors) == 1 and output.vectors[0] in self.centred:
            return sympy.Integer(0)
        return sympy.Symbol(f"E[{output}]", real=True)

    def _product(self, one: Output, two: Output) -> Any:
        left, right = self._one(one), self._one(two)
        if left == 0 or right == 0:
            return sympy.Integer(0)
        first, second = sorted((one, two))
        if first == second:
            return sympy.Symbol(f"‖E[{first}]‖²", nonnegative=True)
        return sympy.Symbol(f"⟨E[{first}], E[{second}]⟩", real=True)
