"""For your own CI: is the advantage function of your trainer unbiased, and what is its MSE?

A trainer turns the rewards of a group into advantages and averages scores with them,
ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i}. A wrong advantage function trains all the same, only worse, so
that no loss curve shows it. Here its expectation is *enumerated* on small problems whose gradient
is known: there is no sampling error, hence no tolerance for one, and the answer takes a second.

A torch trainer's function in five lines::

    import torch
    from ustat_pg.testing import assert_finite, assert_unbiased

    def test_my_advantages():
        assert_unbiased(my_advantages, array=torch.tensor)
        assert_finite(my_advantages, array=torch.tensor)

:func:`assert_invariances` tests properties that hold reward by reward, :func:`exact_mse` says what
an unbiased function still gains or loses against grpo, and :func:`rewards`, :func:`scores` and
:func:`problems` are Hypothesis strategies for tests of your own
(``pip install 'ustat_pg[testing]'``; nothing else here needs Hypothesis).

How the function is called is its *layout*:

``"batched"``
    one array (n, G), the group on the last axis, n groups of n prompts, *each on its own*. That
    the groups do not mix is checked. For a function of a flat (n·G,) array wrap it:
    ``lambda z: mine(z.reshape(-1), z.shape[-1]).reshape(z.shape)``.
``"minibatch"``
    one minibatch (B, G) at a time, for functions that mix prompts: batch-normalised, or with a
    baseline taken from other prompts.
``"group"``
    one group (G,) at a time.

``inputs`` names what the function takes, in order: ``"rewards"``, ``"squared_norms"`` (‖s‖² of each
output, of the rewards' shape) and ``"contexts"`` (the prompt's number, without the last axis).
``array`` turns a NumPy array into the kind the function takes. The function must be deterministic
and without memory: to test a baseline that remembers earlier prompts, hand those over in the
minibatch.

>>> from ustat_pg.estimators import group_mean, grpo
>>> assert_unbiased(grpo)
>>> assert_unbiased(group_mean)
Traceback (most recent call last):
...
AssertionError: group_mean is biased: at G = 2 on problem ... c = (G-1)/G: a rescaled learning rate...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from .engines.base import Cell, Estimator, InfeasibleError, SquaredError
from .engines.gradients.exact import ExactEngine, minibatches
from .predictions.mse import gradient_mse
from .problems import KINDS, SoftmaxBandit, random_problem
from .validation import InputError, finite_array, integer

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "INPUTS",
    "INVARIANCES",
    "LAYOUTS",
    "MseReport",
    "assert_finite",
    "assert_invariances",
    "assert_unbiased",
    "default_problems",
    "exact_mse",
    "problems",
    "rewards",
    "scores",
]

Array = NDArray[np.float64]

LAYOUTS = ("batched", "minibatch", "group")
"""How a function is called: see the module's own page."""

INPUTS = ("rewards", "squared_norms", "contexts")
"""What a function can take."""

INVARIANCES = ("shift", "scale", "permutation", "zero-sum")
"""The properties that :func:`assert_invariances` knows."""

_SAME = 1e-4
"""Two evaluations of one group that differ by more, relatively, are not the rounding of float32."""
_PROPORTIONAL = 1e-7
_WATCHED, _MANY = 50, 8
"""Whether groups stay apart is looked at in so many first calls, and in every call on many groups."""
_SINGLE_PRECISION = 1e-5


P = ParamSpec("P")
T = TypeVar("T")


class _Violation(AssertionError):
    """A finding of ours, as opposed to an assert inside the function under test."""


def _reports(function: Callable[P, T]) -> Callable[P, T]:
    """Let findings leave as plain assertion errors, without our own insides in the traceback."""

    @functools.wraps(function)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except _Violation as found:
            message = str(found)
        raise AssertionError(message)

    return reporting


def _numpy(value: Any) -> Any:
    """A NumPy array of whatever array the function returned."""
    if hasattr(value, "detach"):
        # torch: off the graph, off the device, and bfloat16, which NumPy lacks, to float64.
        value = value.detach().cpu().double()
    elif type(value).__module__.startswith("cupy"):
        value = value.get()
    array = np.asarray(value)
    if array.dtype == object and hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    return array


def _show(array: Array) -> str:
    return str(np.round(array, 6).tolist())


class _UnderTest:
    """A user's function, called in its own layout with its own kind of arrays, and its answers checked."""

    def __init__(
        self,
        function: Callable[..., Any],
        layout: str,
        inputs: Sequence[str],
        array: Callable[[Any], Any] | None,
    ) -> None:
        if not callable(function):
            raise InputError(f"function is {function!r}: it must be callable")
        if layout not in LAYOUTS:
            raise InputError(f"layout {layout!r} is unknown: choose one of {', '.join(LAYOUTS)}")
        if isinstance(inputs, str) or "rewards" not in inputs or not set(inputs) <= set(INPUTS):
            raise InputError(
                f"inputs is {inputs!r}: it must hold 'rewards' and can hold {', '.join(INPUTS[1:])}"
            )
        if array is not None and not callable(array):
            raise InputError(f"array is {array!r}: it must be callable, as torch.tensor is")
        self.function, self.layout, self.inputs, self.array = function, layout, tuple(inputs), array
        inner = getattr(function, "func", function)
        self.name = getattr(inner, "__name__", type(inner).__name__)
        self.single, self.calls = False, 0

    def __call__(self, rewards: Array, squared_norms: Array, contexts: Any) -> Array:
        """Advantages (n, B, G) of rewards (n, B, G), squared norms (n, B, G) and contexts (n, B)."""
        given = {"rewards": rewards, "squared_norms": squared_norms, "contexts": contexts}
        unit = 0 if self.layout == "minibatch" else 1
        columns = [np.asarray(given[name]) for name in self.inputs]
        columns = [c.reshape(-1, *c.shape[1 + unit :]) for c in columns]
        shapes = [c.shape[1:] for c in columns]
        widths = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        # Far fewer rewards than outcomes differ, and a call may be slow: each is made once.
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
        if self.calls <= _WATCHED or len(answers) > _MANY:
            self._alone(parts, answers)
        return answers[back.reshape(-1)].reshape(rewards.shape)

    def _evaluate(self, parts: list[Any]) -> Array:
        """Answers of the distinct units, one call for all or one for each."""
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
            # What a division by 0 leaves is reported below, with the rewards that led to it.
            with np.errstate(all="ignore"):
                answer = self.function(*arguments)
        except Exception as error:
            kinds = ", ".join(
                f"{type(a).__name__} {p.shape}" for a, p in zip(arguments, parts, strict=True)
            )
            error.add_note(
                f"raised by {self.name}, called with {kinds}; if it takes another kind of array "
                "say array=, if another shape layout="
            )
            raise
        try:
            array = _numpy(answer)
        except (TypeError, ValueError):
            array = np.asarray(None)
        if array.dtype.kind not in "iuf":
            raise _Violation(
                f"{self.name} returned {type(answer).__name__}: it must return an array of numbers"
            )
        if array.shape != rewards.shape:
            raise _Violation(
                f"{self.name} returned shape {array.shape} for rewards of shape {rewards.shape}: "
                "they must be equal"
            )
        dtype = str(getattr(answer, "dtype", array.dtype))
        self.single = self.single or dtype.endswith(("float32", "float16"))
        array = array.astype(np.float64)
        bad = ~np.isfinite(array)
        if bad.any():
            row = tuple(np.argwhere(bad)[0][: 1 if self.layout == "batched" else 0])
            raise _Violation(
                f"{self.name} is not finite: the advantages of rewards {_show(rewards[row])} "
                f"are {_show(array[row])}"
            )
        return array

    def _alone(self, parts: list[Any], answers: Array) -> None:
        """Refuse a function that is random, that remembers, or that mixes what it should not."""
        chosen = np.unique(np.linspace(0, len(answers) - 1, 4).astype(int))
        alone = np.concatenate([self._evaluate([p[i : i + 1] for p in parts]) for i in chosen])
        rewards = parts[self.inputs.index("rewards")][chosen]
        axes = tuple(range(1, rewards.ndim))
        scale = np.abs(rewards).max(axes) + np.abs(answers[chosen]).max(axes)
        off = np.abs(alone - answers[chosen]).max(axes) > _SAME * scale
        if not off.any():
            return
        first = int(np.flatnonzero(off)[0])
        group, one, two = (_show(a[first]) for a in (rewards, answers[chosen], alone))
        if self.layout == "batched":
            again = self._evaluate(parts)
            if np.allclose(again, answers, rtol=_SAME, atol=_SAME * float(scale.max())):
                raise _Violation(
                    f"{self.name} mixes the groups of a batch: the advantages of {group} are {one} "
                    f"beside other groups and {two} alone; test it with layout='minibatch'"
                )
        raise _Violation(
            f"{self.name} is random or remembers earlier calls: the advantages of {group} were "
            f"{one} and then {two}; only a function of its arguments alone can be enumerated"
        )

    @property
    def hint(self) -> str:
        return (
            f"; the advantages came in single precision: rtol={_SINGLE_PRECISION:g} allows for that"
            if self.single
            else ""
        )


def _sizes(name: str, value: Any, minimum: int) -> tuple[int, ...]:
    """One whole number or several."""
    several = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not several:
        raise InputError(f"{name} is empty: give at least one")
    return tuple(integer(name, one, minimum) for one in several)


def _tolerance(rtol: Any) -> float:
    number = float(finite_array("rtol", rtol, 0))
    if not 0 <= number < 1:
        raise InputError(f"rtol is {number}: it must be at least 0 and below 1")
    return number


@functools.cache
def _defaults() -> tuple[tuple[str, SoftmaxBandit], ...]:
    def sure(table: list[list[float]]) -> tuple[Array, Array]:
        values = np.array(table)[..., None]
        return values, np.ones_like(values)

    features = [
        [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]],
        [[0.5, -1.0], [1.0, 1.0], [0.0, -0.5]],
    ]
    chance = [[[0.7, 0.3], [0.0, 1.0]], [[0.25, 0.75], [0.0, 1.0]]]
    return (
        (
            "three rewards, two prompts that share parameters",
            SoftmaxBandit.linear(
                [0.6, 0.4], features, [0.4, -0.3], *sure([[1.0, 0.0, 0.5], [0.0, 0.5, 1.0]])
            ),
        ),
        (
            "binary reward, one prompt easier",
            SoftmaxBandit.tabular(
                [0.5, 0.5],
                [[0.8, -0.2], [-1.5, 0.5]],
                np.broadcast_to([1.0, 0.0], (2, 2, 2)),
                chance,
            ),
        ),
        (
            "a prompt rarely solved",
            SoftmaxBandit.tabular([1.0], [[-3.0, 0.0, 0.5]], *sure([[1.0, 0.0, 0.0]])),
        ),
        (
            "negative rewards",
            SoftmaxBandit.tabular([1.0], [[0.3, -0.5, 0.9]], *sure([[-10.0, -9.5, -12.0]])),
        ),
    )


def default_problems() -> dict[str, SoftmaxBandit]:
    """The problems that :func:`assert_unbiased` enumerates unless it is given others, by name.

    Few outcomes each, so that groups of 4 in minibatches of 2 are enumerated; prompts of different
    value that share parameters, binary and graded rewards, sure and random ones, negative ones.

    >>> len(default_problems())
    4
    """
    return dict(_defaults())


def _named(
    problems: SoftmaxBandit | Iterable[SoftmaxBandit] | Mapping[str, SoftmaxBandit] | None,
) -> dict[str, SoftmaxBandit]:
    if problems is None:
        return default_problems()
    if isinstance(problems, SoftmaxBandit):
        problems = [problems]
    if not isinstance(problems, Mapping):
        problems = {f"number {i}": problem for i, problem in enumerate(problems)}
    if not problems:
        raise InputError("problems is empty: give at least one")
    for name, problem in problems.items():
        if not isinstance(problem, SoftmaxBandit):
            raise InputError(
                f"problem {name!r} is a {type(problem).__name__}: it must be a SoftmaxBandit"
            )
    return dict(problems)


def _mean_gradient(under: _UnderTest, cell: Cell) -> Array:
    """E ĝ by enumeration of every outcome, in order, of a minibatch: (d,)."""
    problem = cell.problem
    weights = np.zeros(problem.contexts * problem.arms)
    try:
        for draws, probability in minibatches(cell, tuples=True):
            share = probability[:, None, None] * under(
                draws.rewards, draws.squared_norms, draws.contexts
            )
            where = draws.contexts[..., None] * problem.arms + draws.arms
            weights += np.bincount(where.ravel(), share.ravel(), minlength=len(weights))
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{error}; take a smaller group_size or batch_size, or a problem with fewer outcomes"
        ) from None
    weights /= cell.batch_size * cell.group_size
    table = weights.reshape(problem.contexts, problem.arms)
    return np.sum([problem.policy.combine(x, w) for x, w in enumerate(table)], axis=0)


@dataclass(frozen=True, eq=False)
class _Expectation:
    """E ĝ beside g on one problem at one G and B."""

    problem: str
    group_size: int
    batch_size: int
    mean: Array
    target: Array
    scale: float  # (E‖s‖² E z²)^½, which bounds ‖g‖ and does not vanish with it

    @property
    def error(self) -> float:
        return float(np.linalg.norm(self.mean - self.target))

    @property
    def flat(self) -> bool:
        return float(np.linalg.norm(self.target)) <= 1e-12 * self.scale

    @property
    def relative(self) -> float:
        return self.error / (self.scale if self.flat else float(np.linalg.norm(self.target)))

    @property
    def factor(self) -> float:
        """The c of the multiple of g that is nearest to E ĝ."""
        return float(self.mean @ self.target) / float(self.target @ self.target)

    @property
    def residual(self) -> float:
        """How far E ĝ is from every multiple of g."""
        rest = self.mean if self.flat else self.mean - self.factor * self.target
        return float(np.linalg.norm(rest)) / self.scale if self.scale else 0.0


def _factors(results: list[_Expectation], rtol: float) -> dict[tuple[int, int], float] | None:
    """The c with E ĝ = c g on every problem, by (G, B); None if there is none."""
    tolerance = max(rtol, _PROPORTIONAL)
    factors: dict[tuple[int, int], float] = {}
    for result in results:
        if result.residual > tolerance:
            return None
        if result.flat:
            continue
        cell = (result.group_size, result.batch_size)
        known = factors.setdefault(cell, result.factor)
        if abs(result.factor - known) > tolerance * result.scale / np.linalg.norm(result.target):
            return None
    return factors


_FACTORS: tuple[tuple[str, Callable[[int, int], float], str], ...] = (
    ("0", lambda g, b: 0.0, "it carries no signal"),
    ("-1", lambda g, b: -1.0, "the sign is wrong"),
    (
        "(G-1)/G",
        lambda g, b: (g - 1) / g,
        "a rescaled learning rate, that of the full group mean, in which the own reward is too",
    ),
    (
        "(BG-1)/(BG)",
        lambda g, b: (b * g - 1) / (b * g),
        "a rescaled learning rate, that of the mean of the minibatch, the own reward included",
    ),
    (
        "-(G-1)/G",
        lambda g, b: -(g - 1) / g,
        "the sign is wrong, and the full group mean rescales the learning rate",
    ),
    (
        "(G-2)/(G-1)",
        lambda g, b: (g - 2) / (g - 1),
        "a rescaled learning rate: the own reward is in a sum that is divided by G-1",
    ),
    ("G/(G-1)", lambda g, b: g / (g - 1), "a rescaled learning rate"),
    ("1/G", lambda g, b: 1 / g, "a rescaled learning rate: divided by the group size twice"),
    ("G", lambda g, b: float(g), "a rescaled learning rate: a sum over the group, not a mean"),
    ("B", lambda g, b: float(b), "a rescaled learning rate: a sum over the prompts, not a mean"),
    ("1/B", lambda g, b: 1 / b, "a rescaled learning rate: divided by the batch size twice"),
    (
        "1/(BG)",
        lambda g, b: 1 / (b * g),
        "a rescaled learning rate: divided by the size of the minibatch twice",
    ),
)
"""Multiples of the gradient that slips lead to: as written, its value, what it means."""


def _meaning(factors: dict[tuple[int, int], float], rtol: float) -> str:
    """What the multiples say, in words."""
    tolerance = max(rtol, _PROPORTIONAL)
    if all(abs(c - 1) <= tolerance for c in factors.values()):
        return "and c differs from 1 by rounding at most: rtol sets what is allowed"
    several = len({batch for _, batch in factors}) > 1
    values = ", ".join(
        f"{round(c, 9) + 0.0:.4g} at G = {g}" + (f", B = {b}" if several else "")
        for (g, b), c in factors.items()
    )
    for text, value, meaning in _FACTORS:
        if all(abs(c - value(*cell)) <= tolerance for cell, c in factors.items()):
            return f"c = {text}: {meaning} ({values})"
    if any(c <= 0 for c in factors.values()):
        return f"not always upwards: c = {values}"
    return f"a rescaled learning rate: c = {values}"


def _diagnosis(results: list[_Expectation], worst: _Expectation, rtol: float) -> str:
    factors = _factors(results, rtol)
    where = "on every problem" if len({r.problem for r in results}) > 1 else "on this problem"
    if factors:
        return f"{where} E ĝ is c times the gradient, {_meaning(factors, rtol)}"
    if worst.flat:
        return "there the gradient is 0 and E ĝ is not"
    if worst.residual <= max(rtol, _PROPORTIONAL):
        return (
            f"there E ĝ is {worst.factor:.4g} times the gradient, but the factor changes from "
            "problem to problem or E ĝ turns away from g: more than a rescaled learning rate"
        )
    cosine = worst.factor * np.linalg.norm(worst.target) / np.linalg.norm(worst.mean)
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    return (
        f"E ĝ is no multiple of the gradient (the angle between them is {angle:.3g} degrees): "
        "more than a rescaled learning rate"
    )


@_reports
def assert_unbiased(
    function: Callable[..., Any],
    *,
    group_size: int | Iterable[int] = (2, 3, 4),
    problems: SoftmaxBandit | Iterable[SoftmaxBandit] | Mapping[str, SoftmaxBandit] | None = None,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    batch_size: int | Iterable[int] | None = None,
    up_to_scale: bool = False,
    rtol: float = 1e-9,
) -> None:
    """Assert that the gradient estimate which these advantages make has the gradient as its mean.

    E ĝ = g,   ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i},   for every problem, G and B.

    E ĝ is the sum over every outcome of a minibatch, each order of a group apart, so that a
    function may depend on the order. grpo is unbiased by Lemma 1 (ustatistic), and so is every
    baseline that the output itself does not enter. The message of a failure says how large the
    bias is, whether E ĝ is a multiple c g (a rescaled learning rate: the full group mean has
    c = (G-1)/G) and whether it is not (normalisation by the standard deviation).

    Arguments:
        function: rewards to advantages of the same shape.
        group_size: G >= 2, one or several.
        problems: what to enumerate, one, several or by name; :func:`default_problems` if not given.
        layout: one of :data:`LAYOUTS`.
        inputs: what the function takes, in order, of :data:`INPUTS`.
        array: turns a NumPy array into the function's kind, e.g. ``torch.tensor``.
        batch_size: B, one or several, for layout ``"minibatch"`` only; 1 and 2 if not given.
        up_to_scale: allow E ĝ = c g with one c > 0 for all problems, which may depend on G and B.
        rtol: allowed ‖E ĝ - g‖ relative to (E‖s‖² E z²)^½, rounding; 1e-5 for single precision.

    Raises:
        AssertionError: the function is biased, or its answer is no array of the rewards' shape, or
            not finite, or not a function of its arguments group by group.
        InputError: an argument is not as said, or there is too much to enumerate.

    >>> from ustat_pg.estimators import group_mean, norm_weighted
    >>> assert_unbiased(group_mean, up_to_scale=True)
    >>> assert_unbiased(
    ...     lambda z, norms: norm_weighted(z, squared_norms=norms), inputs=("rewards", "squared_norms")
    ... )
    """
    under = _UnderTest(function, layout, inputs, array)
    sizes, tolerance, chosen = (
        _sizes("group size", group_size, 2),
        _tolerance(rtol),
        _named(problems),
    )
    if batch_size is not None and layout != "minibatch":
        raise InputError(
            f"batch_size is given with layout {layout!r}, in which each group stands alone: "
            "it is for layout='minibatch'"
        )
    if batch_size is None:
        batch_size = (1, 2) if layout == "minibatch" else 1
    batches = _sizes("batch size", batch_size, 1)
    results = []
    for size in sizes:
        for batch in batches:
            for name, problem in chosen.items():
                moments = problem.moments()
                square = (
                    problem.policy.probs
                    * (problem.reward_probs * problem.reward_values**2).sum(axis=-1)
                ).sum(axis=-1)
                scale = (moments.context_probs @ moments.fisher_trace) * (
                    moments.context_probs @ square
                )
                mean = _mean_gradient(under, Cell(problem, size, batch))
                results.append(
                    _Expectation(name, size, batch, mean, problem.gradient(), float(scale) ** 0.5)
                )
    failed = [r for r in results if not r.error <= tolerance * r.scale]
    if not failed:
        return
    if up_to_scale:
        factors = _factors(results, tolerance)
        if factors and min(factors.values()) > 0:
            return
    # Rounded, so that of equally biased ones the first is named.
    worst = max(failed, key=lambda r: float(f"{r.relative:.6g}"))
    prompts = f", B = {worst.batch_size}" if layout == "minibatch" else ""
    raise _Violation(
        f"{under.name} is biased: at G = {worst.group_size}{prompts} on problem {worst.problem!r} "
        f"‖E ĝ - g‖ is {worst.relative:.3g} times {'(E‖s‖² E z²)^½' if worst.flat else '‖g‖'}, the "
        f"worst of {len(failed)} failures in {len(results)} enumerations; "
        f"{_diagnosis(results, worst, tolerance)}"
        f"{under.hint if worst.relative < _SINGLE_PRECISION else ''}"
    )


def _ratio(one: float, other: float) -> float:
    if other == 0:
        return float("nan") if one == 0 else float("inf")
    return one / other


@dataclass(frozen=True)
class MseReport:
    """The exact MSE E‖ĝ - g‖² that an advantage function leaves, beside those of known baselines.

    Arguments:
        function: its name.
        group_size: G.
        batch_size: B.
        mse: variance + squared_bias.
        variance: E‖ĝ - E ĝ‖².
        squared_bias: ‖E ĝ - g‖².
        factor: c = ⟨E ĝ, g⟩/‖g‖², 1 if unbiased; NaN where g = 0.
        rescaled_mse: E‖ĝ/c - g‖², the MSE once the learning rate makes up for c; a function that
            shrinks the gradient has a small ``mse`` and gains nothing, which shows here. NaN
            unless c > 0.
        grpo_mse, oracle_mse, vanilla_mse, minimum_variance_mse: the same quantity for these.
    """

    function: str
    group_size: int
    batch_size: int
    mse: float
    variance: float
    squared_bias: float
    factor: float
    rescaled_mse: float
    grpo_mse: float
    oracle_mse: float
    vanilla_mse: float
    minimum_variance_mse: float

    @property
    def ratio_to_grpo(self) -> float:
        """MSE over that of grpo: below 1 is a gain. NaN where both are 0."""
        return _ratio(self.mse, self.grpo_mse)

    @property
    def rescaled_ratio_to_grpo(self) -> float:
        """The same at equal step length, from ``rescaled_mse``."""
        return _ratio(self.rescaled_mse, self.grpo_mse)

    def __str__(self) -> str:
        text = (
            f"{self.function} at G = {self.group_size}, B = {self.batch_size}: "
            f"MSE {self.mse:.4g}, {self.ratio_to_grpo:.4g} times grpo's ({self.grpo_mse:.4g}; "
            f"oracle {self.oracle_mse:.4g}, minimum-variance {self.minimum_variance_mse:.4g})"
        )
        if self.squared_bias > 1e-18 * max(self.mse, 1e-300):
            text += (
                f"; biased, {self.squared_bias:.3g} of it is squared bias; E ĝ has {self.factor:.4g} "
                f"of the gradient, and with that made up for the MSE is {self.rescaled_mse:.4g}, "
                f"{self.rescaled_ratio_to_grpo:.4g} times grpo's"
            )
        return text


@_reports
def exact_mse(
    function: Callable[..., Any],
    *,
    problem: SoftmaxBandit,
    group_size: int,
    batch_size: int = 1,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
) -> MseReport:
    """The MSE of the gradient estimate that these advantages make, by enumeration.

    MSE = E‖ĝ - g‖² = tr Cov ĝ + ‖E ĝ - g‖² over every outcome of a minibatch of B prompts drawn
    i.i.d.; those of grpo and the baselines that depend on the prompt only are the closed forms of
    Theorem 2 (mse) and Proposition 3 (minibatch).

    Arguments:
        function, layout, inputs, array: as for :func:`assert_unbiased`.
        problem: what the policy is trained on.
        group_size: G >= 2.
        batch_size: B >= 1.

    Raises:
        AssertionError, InputError: as for :func:`assert_unbiased`, bias apart.

    >>> from ustat_pg.estimators import group_mean
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> report = exact_mse(group_mean, problem=coin, group_size=2)
    >>> report.factor, report.ratio_to_grpo, report.rescaled_ratio_to_grpo
    (0.5, 0.5, 1.0)
    """
    under = _UnderTest(function, layout, inputs, array)
    if not isinstance(problem, SoftmaxBandit):
        raise InputError(f"problem is a {type(problem).__name__}: it must be a SoftmaxBandit")
    cell = Cell(problem, integer("group size", group_size, 2), integer("batch size", batch_size))
    target = problem.gradient()
    bias = _mean_gradient(under, cell) - target
    estimator = Estimator(
        under.name, function=lambda z, draws: under(z, draws.squared_norms, draws.contexts)
    )
    mse = float(ExactEngine(tuples=True).measure(cell, [SquaredError(estimator)]).mean[0])
    squared_bias, length = float(bias @ bias), float(target @ target)
    factor = 1 + float(bias @ target) / length if length else float("nan")
    rescaled = float("nan")
    if factor > _PROPORTIONAL:
        second_moment = mse + (2 * factor - 1) * length
        rescaled = max(second_moment / factor**2 - length, 0.0)
    known = {
        baseline: gradient_mse(problem.moments(), baseline, cell.group_size, cell.batch_size).mse
        for baseline in ("grpo", "oracle", "vanilla", "minimum-variance")
    }
    return MseReport(
        function=under.name,
        group_size=cell.group_size,
        batch_size=cell.batch_size,
        mse=mse,
        variance=max(mse - squared_bias, 0.0),
        squared_bias=squared_bias,
        factor=factor,
        rescaled_mse=rescaled,
        grpo_mse=known["grpo"],
        oracle_mse=known["oracle"],
        vanilla_mse=known["vanilla"],
        minimum_variance_mse=known["minimum-variance"],
    )


@dataclass(frozen=True, eq=False)
class _Case:
    """Rewards of one minibatch and what is done to them."""

    rewards: Array  # (B, G)
    squared_norms: Array  # (B, G)
    offset: float
    factor: float
    order: NDArray[np.int64]  # (B, G), a permutation in each row


def _advantages(under: _UnderTest, rewards: Array, squared_norms: Array) -> Array:
    return under(rewards[None], squared_norms[None], np.zeros((1, len(rewards)), np.int64))[0]


def _violation(under: _UnderTest, name: str, case: _Case, rtol: float) -> str | None:
    """What is wrong with a property on one case, if anything."""
    rewards, norms = case.rewards, case.squared_norms
    plain = _advantages(under, rewards, norms)
    magnitude = float(np.abs(rewards).max())
    if name == "zero-sum":
        total = plain.sum(axis=-1)
        allowed = rtol * rewards.shape[-1] * (np.abs(plain).max() + magnitude)
        if (np.abs(total) > allowed).any():
            row = int(np.argmax(np.abs(total)))
            return (
                f"advantages do not sum to zero: {_show(plain[row])} sums to {total[row]:.4g}, "
                f"at rewards {_show(rewards[row])}"
            )
        return None
    if name == "shift":
        other = _advantages(under, rewards + case.offset, norms)
        wanted, said, changed = plain, "is not shift-invariant", f"A(z + {case.offset:g})"
        law, magnitude = "A(z)", magnitude + abs(case.offset)
    elif name == "scale":
        other = _advantages(under, case.factor * rewards, norms)
        wanted, said, changed = (
            case.factor * plain,
            "is not scale-equivariant",
            f"A({case.factor:g} z)",
        )
        law, magnitude = f"{case.factor:g} A(z)", magnitude * case.factor
    else:
        other = _advantages(
            under,
            np.take_along_axis(rewards, case.order, -1),
            np.take_along_axis(norms, case.order, -1),
        )
        wanted = np.take_along_axis(plain, case.order, -1)
        said, changed = "is not permutation-equivariant", "A(z in another order)"
        law = "A(z) in that order"
    allowed = rtol * (np.abs(wanted).max() + magnitude)
    if np.abs(other - wanted).max() <= allowed:
        return None
    text = (
        f"{said}: {changed} is {_show(other)} and {law} is {_show(wanted)}, "
        f"at rewards z = {_show(rewards)}"
    )
    if name == "permutation":
        text += f", order {case.order.tolist()}"
    if name == "scale" and np.abs(other - plain).max() <= 1e-2 * np.abs(plain).max():
        text += f"; {changed} is about A(z): the advantages are normalised, as by a deviation"
    if "squared_norms" in under.inputs:
        text += f", squared norms {_show(norms)}"
    return text


def _check(under: _UnderTest, name: str, rtol: float) -> Callable[[_Case], None]:
    def check(case: _Case) -> None:
        text = _violation(under, name, case, rtol)
        if text:
            verb = "'s " if text.startswith("advantages") else " "
            raise _Violation(f"{under.name}{verb}{text}{under.hint}")

    return check


# Multiples of 1/16 of moderate size, so that sums and shifts are exact and what a test finds is
# not rounding.
_OFFSETS = (1.0, -3.0, 0.5, 1000.0, 2.0**20)
_SCALES = (2.0, 3.0, 0.5, 10.0, 1024.0, 2.0**-10)


def _corners(size: int) -> dict[str, Array]:
    """Groups in which something degenerates, by name, (G,) each."""
    first, last, half = np.zeros(size), np.ones(size), np.zeros(size)
    first[0], last[-1], half[::2] = 1.0, 0.0, 1.0
    return {
        "all rewards zero": np.zeros(size),
        "all rewards equal": np.ones(size),
        "a single reward that is not zero": first,
        "all but one reward equal": last,
        "half of the rewards one": half,
        "a large offset": 2.0**20 + first,
        "negative rewards": -2 - half,
        "a tiny spread": first * 2.0**-20,
    }


_CORNER_CHANGES = ((1.0, 2.0), (-3.0, 0.5), (2.0**20, 2.0**-10))


def _corner_cases(name: str, size: int, batches: Sequence[int]) -> Iterable[_Case]:
    for row in _corners(size).values():
        for batch in batches:
            z = np.broadcast_to(row, (batch, size)).copy()
            if batch > 1:
                z[1:] = 0.5 * np.arange(size)
            norms = np.broadcast_to(1.0 + np.arange(size), z.shape)
            order = np.broadcast_to(np.roll(np.arange(size), 1), z.shape)
            for offset, factor in _CORNER_CHANGES if name in ("shift", "scale") else [(0.0, 1.0)]:
                yield _Case(z, norms, offset, factor, order)


def _seeded_cases(
    sizes: Sequence[int], batches: Sequence[int], number: int, seed: int
) -> Iterable[_Case]:
    rng = np.random.default_rng(seed)
    for _ in range(number):
        shape = (int(rng.choice(batches)), int(rng.choice(sizes)))
        yield _Case(
            rng.integers(-64, 65, shape) / 16,
            rng.integers(1, 65, shape) / 16,
            float(rng.choice(_OFFSETS)),
            float(rng.choice(_SCALES)),
            np.argsort(rng.random(shape), axis=-1),
        )


def _has_hypothesis() -> bool:
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        return False
    return True


def _search(
    check: Callable[[_Case], None], sizes: Sequence[int], batches: Sequence[int], number: int
) -> None:
    """Let Hypothesis look for a case that fails, and make it small."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    @st.composite
    def cases(draw: Any) -> _Case:
        batch, size = draw(st.sampled_from(batches)), draw(st.sampled_from(sizes))
        order = [draw(st.permutations(range(size))) for _ in range(batch)]
        return _Case(
            draw(rewards(size, batch=batch)),
            draw(rewards(size, batch=batch)) ** 2 + 1 / 16,
            draw(st.sampled_from(_OFFSETS)),
            draw(st.sampled_from(_SCALES)),
            np.array(order, dtype=np.int64),
        )

    # Without a database and derandomised: a user's CI must not change from run to run, and what
    # one function failed on is nothing to another. A call may be slow (a GPU's first).
    quiet = settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    quiet(given(cases())(check))()


@_reports
def assert_invariances(
    function: Callable[..., Any],
    which: Iterable[str] = INVARIANCES,
    *,
    group_size: int | Iterable[int] = (2, 3, 4, 8),
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    examples: int = 100,
    rtol: float = 1e-9,
) -> None:
    """Assert properties of an advantage function that hold reward by reward.

    A(z + c) = A(z) (shift),   A(c z) = c A(z), c > 0 (scale),   A(P z) = P A(z) (permutation),
    Σᵢ Aᵢ = 0 (zero-sum).

    grpo and the full group mean have all four; vanilla has neither shift nor
    zero-sum, a normalised function has no scale, norm-weighted no zero-sum: ask for those that
    yours is meant to have. None of them follows from unbiasedness, nor it from them. Corner cases
    come first (all rewards equal, one different, a large offset), then ``examples`` found by
    Hypothesis where it is installed, which shrinks a failure, and seeded draws where it is not;
    both are the same in every run.

    Arguments:
        function, layout, inputs, array: as for :func:`assert_unbiased`; ``contexts`` are all 0.
        which: some of :data:`INVARIANCES`. In layout ``"minibatch"`` c is the same for all
            prompts, the order of each is its own.
        group_size: G >= 2, one or several.
        examples: how many are tried for each property.
        rtol: allowed difference relative to rewards and advantages; 1e-5 for single precision.

    Raises:
        AssertionError: a property fails, with the rewards; or as for :func:`assert_unbiased`.
        InputError: an argument is not as said.

    >>> from ustat_pg.estimators import grpo, vanilla
    >>> assert_invariances(grpo)
    >>> assert_invariances(vanilla, ["shift"])
    Traceback (most recent call last):
    ...
    AssertionError: vanilla is not shift-invariant: A(z + 1) is [[1.0, 1.0]] and A(z) is ...
    """
    under = _UnderTest(function, layout, inputs, array)
    names = [which] if isinstance(which, str) else list(which)
    for name in names:
        if name not in INVARIANCES:
            raise InputError(
                f"invariance {name!r} is unknown: choose some of {', '.join(INVARIANCES)}"
            )
    if not names:
        raise InputError(f"which is empty: choose some of {', '.join(INVARIANCES)}")
    sizes, tolerance = _sizes("group size", group_size, 2), _tolerance(rtol)
    number = integer("examples", examples)
    batches = (1,) if layout == "group" else (1, 2, 3)
    for name in names:
        check = _check(under, name, tolerance)
        for size in sizes:
            for case in _corner_cases(name, size, batches[:2]):
                check(case)
        if not _has_hypothesis():
            for case in _seeded_cases(sizes, batches, number, seed=0):
                check(case)
        else:
            _search(check, sizes, batches, number)


@_reports
def assert_finite(
    function: Callable[..., Any],
    *,
    group_size: int | Iterable[int] = (2, 3, 8),
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that degenerate groups give no NaN and no infinity.

    All rewards equal or zero, so that their deviation is 0; a single one that is not; two values a
    hair apart; a large offset; equal rewards that are no binary fractions, whose mean need not be
    equal to them; and scores that are all zero but one, or all. Each group alone and beside an
    ordinary one.

    Arguments:
        function, layout, inputs, array: as for :func:`assert_unbiased`; ``contexts`` are all 0.
        group_size: G >= 2, one or several.

    Raises:
        AssertionError: advantages are not finite; the message says for which group.
        InputError: an argument is not as said.

    >>> from ustat_pg.estimators import grpo
    >>> assert_finite(grpo)
    >>> assert_finite(lambda z: (z - z.mean(-1, keepdims=True)) / z.std(-1, keepdims=True))
    Traceback (most recent call last):
    ...
    AssertionError: G = 2, all rewards zero: <lambda> is not finite: the advantages of ...
    """
    under = _UnderTest(function, layout, inputs, array)
    for size in _sizes("group size", group_size, 2):
        groups = _corners(size)
        groups["equal rewards that are no binary fractions"] = np.full(size, 0.1)
        norms = {"": np.ones((1, size))}
        if "squared_norms" in under.inputs:
            norms |= {
                ", all scores zero": np.zeros((1, size)),
                ", all scores zero but one": np.eye(size)[:1],
            }
        for name, group in groups.items():
            for said, weight in norms.items():
                beside = np.stack([group, np.linspace(0, 1, size)])
                try:
                    _advantages(under, group[None], weight)
                    if layout != "group":
                        _advantages(under, beside, np.repeat(weight, 2, axis=0))
                except _Violation as found:
                    raise _Violation(f"G = {size}, {name}{said}: {found}") from None


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
    low, *rest = _sizes(name, value, minimum)
    if len(rest) > 1 or (rest and rest[0] < low):
        raise InputError(f"{name} is {value!r}: it must be a number or (least, greatest)")
    return low, rest[0] if rest else low


def _shape(batch: Any) -> tuple[int, ...]:
    return () if batch == () else _sizes("batch", batch, 1)


def rewards(
    group_size: int | tuple[int, int] = (2, 8),
    *,
    batch: int | tuple[int, ...] = (),
    values: Sequence[float] | None = None,
) -> SearchStrategy[Array]:
    """Hypothesis strategy: rewards of groups, batch + (G,), that shrink towards zero.

    Multiples of 1/16 in [-4, 4], so that sums and shifts are exact in floating point.

    Arguments:
        group_size: G >= 2, or the least and the greatest.
        batch: leading axes.
        values: the values a reward can take instead, e.g. (0, 1); they shrink to the first.

    Raises:
        InputError: an argument is not as said.
        ImportError: Hypothesis is not installed.

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

    Any arrays, not those of a policy: what is an algebraic identity holds for them all
    (Lemma 1, ustatistic). For rewards of the same groups draw both at one G:
    ``integers(2, 8).flatmap(lambda size: tuples(scores(size), rewards(size)))``.

    Arguments:
        group_size: G >= 2, or the least and the greatest.
        parameters: d >= 1, or the least and the greatest.
        batch: leading axes.

    Raises:
        InputError: an argument is not as said.
        ImportError: Hypothesis is not installed.

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
    """Hypothesis strategy: problems of the kinds asked for, each small enough to enumerate.

    A failure prints as the call of :func:`~ustat_pg.problems.random_problem` that makes the
    problem again, with one context, the first kind and seed 0 where these fail too.

    Arguments:
        kinds: some of :data:`~ustat_pg.problems.KINDS`, the simplest first.
        max_contexts: the most prompts a problem has.

    Raises:
        InputError: an unknown kind, or a number that is not whole.
        ImportError: Hypothesis is not installed.

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
