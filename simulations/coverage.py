"""Which public functions the claims read: measured, not declared.

A function of ``ustat_pg.predictions`` or a moment is read by a claim if another value of it makes another
*prediction* of some check, a law that draws are held against included: that it is called, for a rival
or to choose a problem, is not enough. An estimator, a U-statistic or a distribution is read if some
check's cells call it as they are made and measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from inspect import Parameter, isclass, isfunction, signature
from itertools import product
from math import isclose
from re import sub
from typing import Any, get_type_hints

import numpy as np

from ustat_pg.engines import Cell, Quantity
from ustat_pg.experiment import Check, Claim
from ustat_pg.validation import InputError

from . import STEMS, claim, experiment
from .problems import Suite

__all__ = ["UNREAD", "public", "reading", "unmoved"]

PREDICTED = ("predictions", "moments")
"""The modules whose functions are read where a prediction follows them."""

CALLED = ("estimators", "ustatistics", "distributions")
"""Those whose functions are read where measuring calls them."""

STEP = 1e-3
"""The relative change of a value that predictions must follow."""

DRAWN = 2
"""Replications that are drawn of a cell to see what it calls."""

UNREAD: Mapping[str, str] = {
    "predictions.CountTable.unbiased": "a yes or no for users; asked by tests/test_independent_tables.py",
    "predictions.one_step_gap": "of networks: suboptimality --on tokens reads it",
    **{
        f"predictions.GroupSizeAdvice.{name}": "how an advice is shown: tests/predictions/test_advice.py"
        for name in ("shown", "remark", "sentence", "to_frame", "plot")
    },
    "estimators.RunningTable.table": "learned over steps, which no cell has: tests/test_running_table.py",
    "estimators.RunningTable.advantages": "as its table",
    "estimators.RunningTable.update": "as its table",
    "estimators.best": "loo_table by another keyword: cells name the table itself",
    "predictions.MixtureLaw.rvs": "draws: tests/predictions/test_limit_law.py",
    "moments.Moments.norm_squared_reward": "for users of pools: closed forms take centred(0)",
    "estimators.squared_score_norms": "of torch modules: tests/test_squared_score_norms.py",
    "distributions.WeightedChi2.rvs": "draws: tests/distributions",
}
"""Why no claim reads a function, by its name."""


class Few(Suite):
    """A suite without generated problems, on which claims call the same functions."""

    @property
    def generated(self) -> int:
        """None."""
        return 0


@dataclass(frozen=True)
class Function:
    """A public function, method or property.

    Arguments:
        name: name, with those of its module and class.
        owner: class that holds it; None for a function of a module.
        attribute: its name there.
        value: what is held: a function, classmethod, property or cached property.
    """

    name: str
    owner: type | None
    attribute: str
    value: Any

    @property
    def predicted(self) -> bool:
        """Whether predictions must follow it."""
        return self.name.startswith(PREDICTED)

    @contextmanager
    def replaced(
        self, change: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[None]:
        """Put a changed function in its place wherever the library or a claim refers to it."""
        new = _rebuilt(self.value, change)
        if self.owner is not None:
            setattr(self.owner, self.attribute, new)
            try:
                yield
            finally:
                setattr(self.owner, self.attribute, self.value)
            return
        _put(self.value, new)
        try:
            yield
        finally:
            # What was imported meanwhile holds the new one too.
            _put(new, self.value)


def _put(old: Any, new: Any) -> None:
    """Put one function in another's place in the modules of the library and the claims, and their tables."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("ustat_pg", "simulations"):
            for table in (
                vars(module),
                *(each for each in vars(module).values() if type(each) is dict),
            ):
                for key in [key for key, value in table.items() if value is old]:
                    table[key] = new


def _rebuilt(value: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    if isinstance(value, property):
        assert value.fget is not None
        return property(change(value.fget))
    if isinstance(value, cached_property):
        # Kept nowhere, so that no instance remembers a changed value.
        return property(change(value.func))
    if isinstance(value, classmethod | staticmethod):
        return type(value)(change(value.__func__))
    return change(value)


def public() -> tuple[Function, ...]:
    """All public functions of these modules, and the public methods and properties of their classes."""
    found: list[Function] = []
    for place in (*PREDICTED, *CALLED):
        module = import_module(f"ustat_pg.{place}")
        for name in module.__all__:
            held = getattr(module, name)
            if isclass(held):
                found += (
                    Function(f"{place}.{name}.{attribute}", held, attribute, value)
                    for attribute, value in vars(held).items()
                    if not attribute.startswith("_") and _computes(value)
                )
            elif callable(held):
                found.append(Function(f"{place}.{name}", None, name, held))
    return tuple(found)


def _computes(value: Any) -> bool:
    """Whether it is a method or a property that computes more than what was given, or a name."""
    if isinstance(value, property | cached_property):
        function = value.fget if isinstance(value, property) else value.func
        return get_type_hints(function).get("return") is not str
    return isfunction(value) or isinstance(value, classmethod)


def _noting(name: str, called: set[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return function(*args, **kwargs)

        return noted

    return change


def _changed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return _moved(function(*args, **kwargs))

    return other


def _moved(value: Any) -> Any:
    """Another value: numbers a little larger, those of a record too; one whole number more."""
    if isinstance(value, bool | np.bool_ | str) or value is None:
        return (not value) if isinstance(value, bool | np.bool_) else value
    if isinstance(value, int | np.integer):
        return value + 1
    if isinstance(value, float | complex | np.number):
        return value * (1 + STEP)
    if isinstance(value, np.ndarray):
        if value.dtype == np.bool_:
            return ~value
        return value * (1 + STEP) if value.dtype.kind in "fc" else value
    if isinstance(value, tuple | list):
        return type(value)(map(_moved, value)) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    if isinstance(value, Iterator):
        return map(_moved, value)
    if type(value).__module__.startswith("ustat_pg.") and hasattr(value, "__dict__"):
        other = copy(value)
        for name, each in vars(value).items():
            # Laws must add up to 1; all else may be another number.
            if "probs" not in name and not callable(each):
                object.__setattr__(other, name, _moved(each))
        return other
    return value


def _predictions(built: Claim) -> dict[str, tuple[Any, ...]]:
    """What each check holds evidence against, by its name: a number, a bound or a law."""
    return {check.name: (check.statement.prediction, *_beside(check)) for check in built.checks}


def _beside(check: Check) -> Iterator[Any]:
    """The bound of a statement about one, and the laws of a distance from one."""
    prediction, region = check.statement.prediction, check.statement.region
    if not isclose(prediction - region.low, region.high - prediction, rel_tol=1e-3):
        yield region.high
    for name in ("pit", "first", "second"):
        yield getattr(check.functional, name, None)


@contextmanager
def _traced(functions: Collection[Function]) -> Iterator[set[str]]:
    """The names of the functions that are called."""
    called: set[str] = set()
    with ExitStack() as stack:
        for each in functions:
            stack.enter_context(each.replaced(_noting(each.name, called)))
        yield called


def reading(stems: Sequence[str] = STEMS, *, enough: bool = False) -> dict[str, tuple[str, ...]]:
    """For every public function the stems of the claims that read it, at size smoke.

    Arguments:
        stems: stems of the claims that are asked.
        enough: whether the first claim found to read a function is enough.
    """
    # Before anything is replaced: what is imported meanwhile would hold what replaces it.
    first = Few("smoke")
    for stem in stems:
        experiment(stem, first)
    functions = public()
    found: dict[str, list[str]] = {each.name: [] for each in functions}
    for stem in stems:
        for name in _read_by(
            stem, [each for each in functions if not (enough and found[each.name])]
        ):
            found[name].append(stem)
    return {name: tuple(by) for name, by in found.items()}


def unmoved(stems: Sequence[str] = STEMS) -> tuple[str, ...]:
    """The options of predictions and distributions that no check of these claims moves from their default,
    but those of functions of which there is a reason why claims do not read them.

    An option is moved where a claim gives another value as it is made; that the library does so itself
    is not enough.
    """
    suite = Few("smoke")
    for stem in stems:
        experiment(stem, suite)
    asked = [each for each in public() if each.name.startswith((*PREDICTED[:1], *CALLED[2:]))]
    left: dict[str, Any] = {}
    with ExitStack() as stack:
        for each in asked:
            if not isinstance(each.value, property | cached_property):
                stack.enter_context(each.replaced(_options_of(each.name, left)))
        for stem in stems:
            claim(stem, suite)
    return tuple(name for name in left if name.partition("(")[0] not in UNREAD)


def _options_of(
    name: str, left: dict[str, Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note the options of a function, and take off those that a claim moves."""

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        known = signature(function)
        defaults = {
            each.name: each.default
            for each in known.parameters.values()
            if each.default is not Parameter.empty
        }
        left.update({f"{name}({option})": None for option in defaults})

        @wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("simulations."):
                for option, value in known.bind(*args, **kwargs).arguments.items():
                    if option in defaults and not _same(value, defaults[option]):
                        left.pop(f"{name}({option})", None)
            return function(*args, **kwargs)

        return noted

    return change


def _same(value: Any, default: Any) -> bool:
    """Whether an option's value is its default; an array is none."""
    return value is default or (np.isscalar(value) and bool(value == default))


def _suite(landscapes: Any = None) -> Suite:
    """A suite that remembers nothing but the problems with an optimum: these take long to make."""
    suite = Few("smoke")
    if landscapes is not None:
        vars(suite)["landscapes"] = landscapes
    return suite


def _read_by(stem: str, functions: Sequence[Function]) -> Iterator[str]:
    suite = _suite()
    with _traced(functions) as called:
        built = claim(stem, suite)
        made = set(called)
        if any(not each.predicted for each in functions):
            _measure(built)
    own = _predictions(built)
    for each in functions:
        if not each.predicted:
            if each.name in called:
                yield each.name
        elif each.name in made:
            with each.replaced(_changed):
                if _differs(own, stem, _suite(suite.landscapes)):
                    yield each.name


def _differs(own: Mapping[str, Any], stem: str, suite: Suite) -> bool:
    """Whether a claim, made again, has a check with another prediction, or can no more be made."""
    try:
        again = _predictions(claim(stem, suite))
    except (InputError, ArithmeticError, AssertionError, ValueError):
        return True
    return any(again[name] != before for name, before in own.items() if name in again)


def _measure(built: Claim) -> None:
    """Draw a few replications of each kind of cell, by plain NumPy where its engines have that."""
    kinds: dict[tuple[type[Cell], str], tuple[Cell, Quantity]] = {}
    for part in (part for check in built.checks for part in check.functional.parts):
        for cell, quantity in product(part.cells, part.quantities):
            # Of the same estimators, at other steps or with other numbers, one is enough.
            kind = type(cell), sub(r"[\d.].*", "", quantity.label)
            if kind not in kinds or _work(cell) < _work(kinds[kind][0]):
                kinds[kind] = cell, quantity
    for cell, quantity in kinds.values():
        cell.measure(cell.engine("reference"), [quantity], first=0, replications=DRAWN)


def _work(cell: Cell) -> int:
    return cell.steps * cell.outputs
