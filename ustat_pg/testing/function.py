"""The function under test: its calls, and the checks on its results."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..engines import Estimator
from ..rounding import SINGLE, SINGLE_GIVEN
from ..validation import Array, InputError, finite_array, integer, one_of

LAYOUTS = ("batched", "minibatch", "group")
"""The ways to call a function: see the page of :mod:`ustat_pg.testing`."""

INPUTS = ("rewards", "squared_norms", "contexts", "earlier")
"""The arguments that a function can take."""

TURN_INPUTS = ("rewards", "reached", "states")
"""The arguments that a function over turns can take; it must take the first two."""

_WATCHED_CALLS, _WATCHED_GROUPS = 50, 8
"""The number of first calls that are checked for mixing groups, and the number of groups above which every
call is.
"""


P = ParamSpec("P")
T = TypeVar("T")


class Violation(AssertionError):
    """A finding of these checks; it differs from an assert inside the function under test."""


def reports(function: Callable[P, T]) -> Callable[P, T]:
    """Raise findings as plain assertion errors, without internal frames in the traceback."""

    @functools.wraps(function)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Violation as violation:
            message = str(violation)
        raise AssertionError(message)

    return reporting


def _numpy(value: Any) -> Any:
    """The function's result as a NumPy array."""
    if hasattr(value, "detach"):
        # torch: off the graph, off the device, and bfloat16, which NumPy lacks, to float64.
        value = value.detach().cpu().double()
    elif type(value).__module__.startswith("cupy"):
        value = value.get()
    array = np.asarray(value)
    if array.dtype == object and hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    return array


def show(array: Array) -> str:
    """The numbers to six digits of the largest, if it is below 1, or to six decimals."""
    largest = float(np.abs(array).max(initial=0.0))
    digits = 5 - math.floor(math.log10(largest)) if 0 < largest < 1 else 6
    return str(np.round(array, digits).tolist())


class UnderTest:
    """A user's function, with calls in its own layout and kind of arrays, and checks of the results."""

    def __init__(
        self,
        function: Callable[..., Any],
        layout: str,
        inputs: Sequence[str],
        array: Callable[[Any], Any] | None,
        rtol: float = 0.0,
        *,
        turns: bool = False,
        memory: int = 0,
    ) -> None:
        self.same = max(SINGLE_GIVEN, relative_tolerance(rtol))
        if not callable(function):
            raise InputError(f"function is {function!r}: it must be callable")
        one_of("layout", layout, LAYOUTS)
        allowed, needed = (TURN_INPUTS, 2) if turns else (INPUTS, 1)
        if isinstance(inputs, str) or not set(allowed[:needed]) <= set(inputs) <= set(allowed):
            over, must = "over turns " if turns else "", " and ".join(map(repr, allowed[:needed]))
            raise InputError(
                f"inputs is {inputs!r}: {over}it must hold {must} and can hold {', '.join(allowed[needed:])}"
            )
        if integer("memory", memory, 0) and "earlier" not in inputs:
            raise InputError(
                f"memory is {memory}: a function with memory has 'earlier' in its inputs"
            )
        if "earlier" in inputs and not memory:
            raise InputError(
                "inputs have 'earlier': memory must give the number of earlier rewards"
            )
        self.memory = memory
        if array is not None and not callable(array):
            raise InputError(f"array is {array!r}: it must be callable, as torch.tensor is")
        self.function, self.layout, self.inputs, self.array = function, layout, tuple(inputs), array
        inner = getattr(function, "func", function)
        self.name = getattr(inner, "__name__", type(inner).__name__)
        self.single, self.calls = False, 0

    def __call__(
        self, rewards: Array, squared_norms: Array, contexts: Any, earlier: Any = None
    ) -> Array:
        """Advantages (n, B, G) of rewards (n, B, G), squared norms (n, B, G), contexts (n, B) and earlier
        rewards (n, B, memory).
        """
        given = {
            "rewards": rewards,
            "squared_norms": squared_norms,
            "contexts": contexts,
            "earlier": earlier,
        }
        unit = 0 if self.layout == "minibatch" else 1
        columns = {name: np.asarray(given[name]) for name in self.inputs}
        units = {name: c.reshape(-1, *c.shape[1 + unit :]) for name, c in columns.items()}
        return self.of(**units).reshape(rewards.shape)

    def of(self, **given: Any) -> Array:
        """The advantages of units (groups or minibatches), with the shape of their rewards.

        Arguments:
            given: inputs by name, with units on the first axis.
        """
        columns = [np.asarray(given[name]) for name in self.inputs]
        shapes = [c.shape[1:] for c in columns]
        widths = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        # There are far fewer different rewards than outcomes, and a call may be slow, so each is made once.
        flat = np.concatenate([c.reshape(len(c), -1) for c in columns], axis=1, dtype=np.float64)
        distinct, back = np.unique(flat, axis=0, return_inverse=True)
        parts = [
            part.reshape(-1, *shape).astype(column.dtype)
            for part, shape, column in zip(
                np.split(distinct, widths, axis=1), shapes, columns, strict=True
            )
        ]
        answers = self._evaluate(parts)
        self.calls += 1
        if self.calls <= _WATCHED_CALLS or len(answers) > _WATCHED_GROUPS:
            self._alone(parts, answers)
        return answers[back.reshape(-1)]

    def _evaluate(self, parts: list[Any]) -> Array:
        """The results of the distinct units, from one call for all or one call each."""
        if self.layout == "batched":
            return self._call(parts)
        return np.stack([self._call([p[i] for p in parts]) for i in range(len(parts[0]))])

    def _call(self, parts: list[Any]) -> Array:
        # Copies: many trainers' functions write into what they are given.
        arguments = [np.array(p) for p in parts]
        rewards = parts[self.inputs.index("rewards")]
        if self.array is not None:
            arguments = [self.array(a) for a in arguments]
        try:
            answer = self._answer(arguments)
        except Exception as error:
            values = None if self.array else self._by_torch(parts, error)
            if values is None:
                kinds = ", ".join(
                    f"{type(a).__name__} {p.shape}" for a, p in zip(arguments, parts, strict=True)
                )
                error.add_note(
                    f"raised by {self.name}, called with {kinds}; if it needs another kind of array, give "
                    "array= (array=torch.tensor for torch); if it needs another shape, give layout=, "
                    f"{self.wrapped}{self._one_group(parts, 0)}"
                )
                raise
            answer = values
        try:
            array = _numpy(answer)
        except (TypeError, ValueError):
            array = np.asarray(None)
        if array.dtype.kind not in "iuf":
            raise Violation(
                f"{self.name} returned {type(answer).__name__}: it must return an array of numbers"
            )
        if array.shape != rewards.shape:
            raise Violation(
                f"{self.name} returned shape {array.shape} for rewards of shape {rewards.shape}: "
                f"they must be equal{f'; {self.wrapped}' if array.ndim == 1 < rewards.ndim else ''}"
            )
        dtype = str(getattr(answer, "dtype", array.dtype))
        self.single = self.single or dtype.endswith(("float32", "float16"))
        array = array.astype(np.float64)
        bad = ~np.isfinite(array)
        if bad.any():
            row = tuple(np.argwhere(bad)[0][: 1 if self.layout == "batched" else 0])
            raise Violation(
                f"{self.name} is not finite: the advantages of rewards {show(rewards[row])} "
                f"are {show(array[row])}{self._one_group(parts, *row)}"
            )
        return array

    def _one_group(self, parts: list[Any], *row: int) -> str:
        """A hint for a function that fails on several groups but not on one of them alone."""
        if self.layout != "batched":
            return ""
        group = [np.array(p[row]) for p in parts]
        try:
            answer = _numpy(self._answer([self.array(g) for g in group] if self.array else group))
            alone = answer.shape == group[self.inputs.index("rewards")].shape
            alone = alone and bool(np.isfinite(answer.astype(float)).all())
        except Exception:
            return ""
        return "; does it take one group at a time? layout='group'" if alone else ""

    def _answer(self, arguments: list[Any]) -> Any:
        # The caller reports the result of a division by 0, together with the rewards.
        with np.errstate(all="ignore"):
            return self.function(*arguments)

    def _by_torch(self, parts: list[Any], error: Exception) -> Any:
        """The result for torch's arrays, which all later calls then use; None if the function does not accept
        them either. A user with a torch function has imported torch.
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(error, TypeError | AttributeError):
            return None
        try:
            answer = self._answer([torch.tensor(p) for p in parts])
        except Exception:
            return None
        self.array = torch.tensor
        return answer

    def _alone(self, parts: list[Any], answers: Array) -> None:
        """Raise an error if the function is random, has memory, or mixes groups."""
        chosen = np.unique(np.linspace(0, len(answers) - 1, 4).astype(int))
        alone = np.concatenate([self._evaluate([p[i : i + 1] for p in parts]) for i in chosen])
        rewards = parts[self.inputs.index("rewards")][chosen]
        axes = tuple(range(1, rewards.ndim))
        scale = np.abs(rewards).max(axes) + np.abs(answers[chosen]).max(axes)
        off = np.abs(alone - answers[chosen]).max(axes) > self.same * scale
        if not off.any():
            return
        first = int(np.flatnonzero(off)[0])
        group, one, two = (show(a[first]) for a in (rewards, answers[chosen], alone))
        if self.layout == "batched":
            again = self._evaluate(parts)
            if np.allclose(again, answers, rtol=self.same, atol=self.same * float(scale.max())):
                raise Violation(
                    f"{self.name} mixes the groups of a batch: the advantages of {group} are {one} "
                    f"beside other groups and {two} alone; test it with layout='minibatch'"
                    f"{self._one_group(parts, int(chosen[first]))}"
                )
        raise Violation(
            f"{self.name} is random or remembers earlier calls: the advantages of {group} were {one} and "
            f"then {two}; only a function that depends on nothing but its arguments can be enumerated"
        )

    @property
    def estimator(self) -> Estimator:
        """The function in the form for engines."""
        return Estimator(
            self.name,
            function=lambda z, draws: self(z, draws.squared_norms, draws.contexts, draws.earlier),
            memory=self.memory,
        )

    @property
    def wrapped(self) -> str:
        """The way to call a function of all groups in one flat array."""
        if "reached" in self.inputs:
            return "for a flat array of all groups, wrap it"
        call = f"{self.name}(z.reshape(-1), z.shape[-1]).reshape(z.shape)"
        return f"for a flat array of all groups, wrap it: lambda z: {call}"

    @property
    def hint(self) -> str:
        return (
            f"; the advantages came in single precision: rtol={SINGLE:g} allows for that"
            if self.single
            else ""
        )


def whole_numbers(name: str, value: Any, minimum: int) -> tuple[int, ...]:
    """One whole number or several."""
    several = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not several:
        raise InputError(f"{name} is empty: give at least one")
    return tuple(integer(name, one, minimum) for one in several)


def relative_tolerance(rtol: Any) -> float:
    number = float(finite_array("rtol", rtol, 0))
    if not 0 <= number < 1:
        raise InputError(f"rtol is {number}: it must be at least 0 and below 1")
    return number
