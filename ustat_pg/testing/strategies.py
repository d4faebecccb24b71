"""Hypothesis strategies for your own tests: ``pip install 'ustat_pg[testing]'``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..problems import KINDS, SoftmaxBandit, random_problem
from ..validation import InputError, finite_array, integer
from .function import Array, whole_numbers

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def _strategies() -> tuple[Any, Any]:
    try:
        from hypothesis import strategies
        from hypothesis.extra import numpy as arrays
    except ImportError:
        raise ImportError(
            "Hypothesis is not installed, and strategies need it: pip install 'ustat_pg[testing]'"
        ) from None
    return strategies, arrays


def _range(name: str, value: Any, minimum: int) -> tuple[int, int]:
    low, *rest = whole_numbers(name, value, minimum)
    if len(rest) > 1 or (rest and rest[0] < low):
        raise InputError(f"{name} is {value!r}: it must be a number or (least, greatest)")
    return low, rest[0] if rest else low


def _shape(batch: Any) -> tuple[int, ...]:
    return () if batch == () else whole_numbers("batch", batch, 1)


def rewards(
    group_size: int | tuple[int, int] = (2, 8),
    *,
    batch: int | tuple[int, ...] = (),
    values: Sequence[float] | None = None,
) -> SearchStrategy[Array]:
    """Hypothesis strategy: rewards of groups, batch + (G,), that shrink towards zero.

    Rewards are multiples of 1/16 in [-4, 4], so that sums and shifts are exact in floating point.

    Arguments:
        group_size: G >= 2, or the least and the greatest.
        batch: leading axes.
        values: other values of a reward, e.g. (0, 1); they shrink to the first.

    >>> import hypothesis
    >>> @hypothesis.given(rewards(4, batch=2))
    ... def test(z):
    ...     assert z.shape == (2, 4)
    >>> test()
    """
    st, arrays = _strategies()
    low, high = _range("group size", group_size, 2)
    shape = _shape(batch)
    if values is None:
        elements = st.integers(-64, 64).map(lambda k: k / 16)
    else:
        elements = st.sampled_from(finite_array("values", values, 1).tolist())
    return st.integers(low, high).flatmap(
        lambda size: arrays.arrays(np.float64, (*shape, size), elements=elements)
    )


def scores(
    group_size: int | tuple[int, int] = (2, 8),
    *,
    parameters: int | tuple[int, int] = (1, 4),
    batch: int | tuple[int, ...] = (),
) -> SearchStrategy[Array]:
    """Hypothesis strategy: scores of groups, batch + (G, d), that shrink towards zero.

    The arrays are arbitrary, not from a policy: an algebraic identity holds for all arrays (Lemma 1,
    ustatistic). To get rewards for the same groups, draw both with one G:
    ``integers(2, 8).flatmap(lambda size: tuples(scores(size), rewards(size)))``.

    Arguments:
        group_size: G >= 2, or the least and the greatest.
        parameters: d >= 1, or the least and the greatest.
        batch: leading axes.

    >>> import hypothesis
    >>> @hypothesis.given(scores(4, parameters=2))
    ... def test(s):
    ...     assert s.shape == (4, 2)
    >>> test()
    """
    st, arrays = _strategies()
    low, high = _range("group size", group_size, 2)
    least, most = _range("parameters", parameters, 1)
    shape = _shape(batch)
    elements = st.integers(-64, 64).map(lambda k: k / 16)
    return st.tuples(st.integers(low, high), st.integers(least, most)).flatmap(
        lambda sizes: arrays.arrays(np.float64, (*shape, *sizes), elements=elements)
    )


def problems(
    kinds: Sequence[str] = KINDS, *, max_contexts: int = 3
) -> SearchStrategy[SoftmaxBandit]:
    """Hypothesis strategy: problems of given kinds, each small enough to enumerate.

    A failure prints the call of :func:`~ustat_pg.problems.random_problem` that makes the problem; it shrinks
    to one context, the first kind and seed 0 if these fail too.

    Arguments:
        kinds: some of :data:`~ustat_pg.problems.KINDS`, the simplest first.
        max_contexts: largest number of prompts of a problem.

    >>> import hypothesis
    >>> @hypothesis.given(problems(["binary", "two-arms"], max_contexts=2))
    ... def test(problem):
    ...     assert problem.contexts <= 2
    >>> test()
    """
    st, _ = _strategies()
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown or not chosen:
        raise InputError(f"kinds is {kinds!r}: choose some of {', '.join(KINDS)}")
    return st.builds(
        random_problem,
        st.integers(0, 2**16),
        st.sampled_from(chosen),
        contexts=st.integers(1, integer("max_contexts", max_contexts)),
    )
