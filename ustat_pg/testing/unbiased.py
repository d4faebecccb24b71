"""The check of unbiasedness by enumeration, and a diagnosis if it fails."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engines import enumerate_mean, enumerate_weights
from ..problems import SoftmaxBandit
from ..rounding import DERIVED, GIVEN, SINGLE
from ..sampling.plans import Plan
from ..validation import InputError
from .function import (
    TURN_INPUTS,
    Array,
    UnderTest,
    Violation,
    relative_tolerance,
    reports,
    whole_numbers,
)
from .linear import NoFormulaError, linear_formula
from .over_turns import TurnProblems, require_unbiased_over_turns
from .plans import largest_group, under_plan
from .tables import climbed

PROPORTIONAL = 1e-7
"""The relative residual below which a mean counts as a multiple of the gradient."""


def default_problems() -> dict[str, SoftmaxBandit]:
    """The default problems of :func:`assert_unbiased`, by name.

    Each has few outcomes, so that groups of 4 in minibatches of 2 can be enumerated. They have prompts of
    different value that share parameters, and rewards that are binary, graded, sure, random and negative.

    >>> len(default_problems())
    4
    """

    def sure(table: list[list[float]]) -> tuple[Array, Array]:
        values = np.array(table)[..., None]
        return values, np.ones_like(values)

    features = [[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], [[0.5, -1.0], [1.0, 1.0], [0.0, -0.5]]]
    chance = [[[0.7, 0.3], [0.0, 1.0]], [[0.25, 0.75], [0.0, 1.0]]]
    return {
        "three rewards, two prompts that share parameters": SoftmaxBandit.linear(
            [0.6, 0.4], features, [0.4, -0.3], *sure([[1.0, 0.0, 0.5], [0.0, 0.5, 1.0]])
        ),
        "binary reward, one prompt easier": SoftmaxBandit.tabular(
            [0.5, 0.5],
            [[0.8, -0.2], [-1.5, 0.5]],
            np.broadcast_to([1.0, 0.0], (2, 2, 2)),
            chance,
        ),
        "a prompt rarely solved": SoftmaxBandit.tabular(
            [1.0], [[-3.0, 0.0, 0.5]], *sure([[1.0, 0.0, 0.0]])
        ),
        "negative rewards": SoftmaxBandit.tabular(
            [1.0], [[0.3, -0.5, 0.9]], *sure([[-10.0, -9.5, -12.0]])
        ),
    }


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


@reports
def climbed_reward(
    function: Callable[..., Any],
    problem: SoftmaxBandit,
    *,
    group_size: int,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
) -> Array:
    """The reward that an advantage function climbs, (X, K); the function may use anything of the group.

    r(x, y) = (1/G) Σᵢ E[Aᵢ | yᵢ = y],   E ĝ = Σ_x ρ(x) Σ_y π(y|x) s(x, y) r(x, y) = ∇ E r with fixed r.

    So the other outputs of the group come from the current policy. Adding a number per prompt to r changes
    nothing. If arms have the rewards 0, 1, 2, ..., a function of rewards is a function of outputs.

    Arguments:
        function, layout, inputs, array: as for :func:`assert_unbiased`.
        problem: prompts and outputs.
        group_size: G >= 2.

    Raises:
        AssertionError: the function's result is invalid, as for :func:`assert_unbiased`.
        InputError: an argument is invalid, or there are too many outcomes to enumerate.

    >>> def judge(z):                                # the share of the others that each output beats
    ...     return (z[..., :, None] > z[..., None, :]).sum(-1) / (z.shape[-1] - 1)
    >>> three = SoftmaxBandit.from_probs([0.5, 0.25, 0.25], [0, 1, 10])
    >>> [climbed_reward(judge, three, group_size=size).round(12).tolist() for size in (2, 5)]
    [[[0.0, 0.5, 0.75]], [[0.0, 0.5, 0.75]]]
    """
    if not isinstance(problem, SoftmaxBandit):
        raise InputError(f"problem is a {type(problem).__name__}: it must be a SoftmaxBandit")
    under = UnderTest(function, layout, inputs, array)
    (size,) = whole_numbers("group size", group_size, 2)
    chances = problem.context_probs[:, None] * problem.policy.probs
    return enumerate_weights(problem, under.estimator, size) / chances


@dataclass(frozen=True, eq=False)
class _Expectation:
    """E ĝ compared with g on one problem at one G and B."""

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
        return float(np.linalg.norm(self.target)) <= DERIVED * self.scale

    @property
    def relative(self) -> float:
        return self.error / (self.scale if self.flat else float(np.linalg.norm(self.target)))

    @property
    def factor(self) -> float:
        """The c for which c g is nearest to E ĝ."""
        return float(self.mean @ self.target) / float(self.target @ self.target)

    @property
    def residual(self) -> float:
        """The distance of E ĝ from the nearest multiple of g."""
        rest = self.mean if self.flat else self.mean - self.factor * self.target
        return float(np.linalg.norm(rest)) / self.scale if self.scale else 0.0


def _factors(results: list[_Expectation], rtol: float) -> dict[tuple[int, int], float] | None:
    """The c with E ĝ = c g on every problem, by (G, B); None if there is none."""
    tolerance = max(rtol, PROPORTIONAL)
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
        "a rescaled learning rate, as for the full group mean, which includes the output's own reward",
    ),
    (
        "(BG-1)/(BG)",
        lambda g, b: (b * g - 1) / (b * g),
        "a rescaled learning rate, as for the mean of the minibatch, which includes the output's own reward",
    ),
    (
        "-(G-1)/G",
        lambda g, b: -(g - 1) / g,
        "the sign is wrong, and the full group mean rescales the learning rate",
    ),
    (
        "(G-2)/(G-1)",
        lambda g, b: (g - 2) / (g - 1) if g > 1 else math.nan,
        "a rescaled learning rate: a sum that includes the output's own reward is divided by G-1",
    ),
    (
        "G/(G-1)",
        lambda g, b: g / (g - 1) if g > 1 else math.nan,
        "a rescaled learning rate",
    ),
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
"""The multiples of the gradient that common errors cause: formula, value, meaning."""


def _meaning(factors: dict[tuple[int, int], float], rtol: float) -> str:
    """A text on the multiples."""
    tolerance = max(rtol, PROPORTIONAL)
    if all(abs(c - 1) <= tolerance for c in factors.values()):
        return "and c differs from 1 only by rounding: rtol sets the allowed error"
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
    if worst.residual <= max(rtol, PROPORTIONAL):
        return (
            f"there E ĝ is {worst.factor:.4g} times the gradient, but the factor changes from "
            "problem to problem or E ĝ turns away from g: more than a rescaled learning rate"
        )
    cosine = worst.factor * np.linalg.norm(worst.target) / np.linalg.norm(worst.mean)
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    return (
        f"E ĝ is not a multiple of the gradient (the angle between them is {angle:.3g} degrees): "
        "more than a rescaled learning rate"
    )


def _require_formula(
    function: Callable[..., Any],
    layout: str,
    array: Callable[[Any], Any] | None,
    up_to_scale: bool,
    rtol: float,
) -> None:
    """Raise a violation if the mean by algebra is not g, nor c g where that is allowed."""
    found = linear_formula(function, layout=layout, array=array, rtol=rtol)
    if found.unbiased or (up_to_scale and found.upwards):
        return
    from ..algebra import G, written

    name, meaning = UnderTest(function, layout, ("rewards",), array).name, ""
    if found.mean.free_symbols <= {G}:
        factors = {(size, 1): float(found.mean.subs(G, size)) for size in (2, 3, 4)}
        meaning = f"{_meaning(factors, rtol)}; "
    raise Violation(
        f"{name} is biased: at every group size E ĝ = c g with c = {written(found.mean)}; {meaning}"
        f"its advantages are {found.advantage}, {found.source}"
    )


@reports
def assert_unbiased(
    function: Callable[..., Any],
    *,
    group_size: int | Iterable[int] | None = None,
    problems: SoftmaxBandit | Iterable[SoftmaxBandit] | Mapping[str, SoftmaxBandit] | None = None,
    layout: str = "batched",
    inputs: Sequence[str] = ("rewards",),
    array: Callable[[Any], Any] | None = None,
    batch_size: int | Iterable[int] | None = None,
    plan: str | Plan | Callable[[Any], bool] | None = None,
    turns: TurnProblems = False,
    up_to_scale: bool = False,
    proof: bool = False,
    rtol: float = GIVEN,
    memory: int = 0,
) -> None:
    """Assert that the gradient estimate from these advantages has the gradient as its mean.

    E ĝ = g,   ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i},   for every problem, G and B.

    E ĝ is the sum over all outcomes of a minibatch, with each order of a group separate, so a function may
    depend on the order. grpo is unbiased by Lemma 1 (ustatistic), and so is every baseline that does not
    depend on the output itself. The message of a failure gives the size of the bias, and says whether E ĝ is
    a multiple c g (a rescaled learning rate: the full group mean has c = (G-1)/G). If it is not
    (normalisation by the standard deviation), the message also gives the weight w by the pass rate, for a
    function of 0/1 rewards.

    Arguments:
        function: function from rewards to advantages of the same shape.
        group_size: G >= 2, or G >= 1 with a memory, one or several (default: 2, 3 and 4, or the plan's
            largest group).
        problems: problems to enumerate, one, several or by name (default: :func:`default_problems`; for a
            plan by the number of successes only those with rewards 0 and 1).
        layout: one of :data:`LAYOUTS`.
        inputs: arguments of the function, in order, from :data:`ustat_pg.testing.INPUTS`.
        array: converts a NumPy array to the function's kind, e.g. ``torch.tensor`` (default: NumPy arrays,
            then torch's if it is imported).
        batch_size: B, one or several, only for layout ``"minibatch"`` (default: 1 and 2).
        plan: a sampling plan, or a function of the rewards so far that returns whether to stop; the function
            under test then gets the drawn outputs of each group, in order (adaptive_groups).
        turns: True, or problems with turns: the function takes rewards and reached turns (n, G, T), and
            states if ``inputs`` has them, and returns advantages of that shape (turns); (G, T) with layout
            ``"group"``.
        up_to_scale: whether E ĝ = c g is allowed, with one c > 0 for all problems that may depend on G and B.
        proof: whether to derive the mean by computer algebra for every group size and every law of scores and
            rewards, where the function has a formula: see :func:`linear_formula`, which says what is proved.
            For other functions a warning says why there is none, and E ĝ is enumerated.
        rtol: allowed ‖E ĝ - g‖ relative to (E‖s‖² E z²)^½, for rounding; 1e-5 for single precision.
        memory: n, the number of earlier rewards of each prompt, (..., n), that a function with ``"earlier"``
            in its inputs gets (reward_memory).

    Raises:
        AssertionError: the function is biased, or its result does not have the rewards' shape, is not finite,
            or does not depend only on the arguments of each group.
        InputError: an argument is invalid, or there are too many outcomes to enumerate.

    >>> from ustat_pg.estimators import group_mean, norm_weighted
    >>> assert_unbiased(group_mean, up_to_scale=True)
    >>> assert_unbiased(
    ...     lambda z, norms: norm_weighted(z, squared_norms=norms), inputs=("rewards", "squared_norms")
    ... )
    >>> def remembering(z, earlier):                                    # groups of one
    ...     return z - earlier.mean(-1, keepdims=True)
    >>> assert_unbiased(remembering, group_size=1, inputs=("rewards", "earlier"), memory=3)
    >>> from ustat_pg.estimators import grpo, sequential
    >>> assert_unbiased(lambda z: sequential(z, plan="3+2 if mixed"), plan="3+2 if mixed")
    >>> assert_unbiased(grpo, plan="3+2 if mixed")
    Traceback (most recent call last):
    ...
    AssertionError: grpo is biased: at G = 5 on problem ...
    >>> from ustat_pg.estimators import turns
    >>> assert_unbiased(lambda rewards, reached: turns(rewards, reached, "to-go"), turns=True)
    >>> assert_unbiased(group_mean, proof=True)
    Traceback (most recent call last):
    ...
    AssertionError: group_mean is biased: at every group size E ĝ = c g with c = (G - 1)/G; ...
    """
    if proof:
        if turns is not False or (plan, batch_size) != (None, None) or layout == "minibatch":
            raise InputError(
                "proof is for groups of rewards that stand alone: leave out plan, turns, batch_size and "
                "layout='minibatch'"
            )
        if tuple(inputs) != ("rewards",):
            raise InputError(f"inputs is {inputs!r}: a proof is for a function of rewards only")
        try:
            _require_formula(function, layout, array, up_to_scale, rtol)
            return
        except NoFormulaError as error:
            # Above this function stand its decorator and the caller.
            text = f"no proof for every group size, E ĝ is enumerated instead: {error}"
            warnings.warn(text, stacklevel=3)
    if turns is not False:
        if (problems, plan, batch_size) != (None, None, None) or layout == "minibatch":
            raise InputError(
                "turns has its own problems with separate groups: leave out problems, plan, "
                "batch_size and layout='minibatch'"
            )
        given = TURN_INPUTS[:2] if tuple(inputs) == ("rewards",) else inputs
        under = UnderTest(function, layout, given, array, rtol, turns=True)
        require_unbiased_over_turns(under, turns, group_size, up_to_scale, rtol)
        return
    if plan is not None:
        if layout != "batched" or tuple(inputs) != ("rewards",):
            raise InputError("a plan needs a function of rewards only, group by group")
        function, layout = under_plan(function, plan), "group"
        group_size = largest_group(plan) if group_size is None else group_size
        if problems is None and not callable(plan):
            problems = {name: entry for name, entry in default_problems().items() if entry.binary}
    if group_size is None:
        group_size = (2, 3, 4)
    under = UnderTest(function, layout, inputs, array, rtol, memory=memory)
    sizes = whole_numbers("group size", group_size, 1 if memory else 2)
    tolerance = relative_tolerance(rtol)
    chosen = _named(problems)
    if batch_size is not None and layout != "minibatch":
        raise InputError(
            f"batch_size is given with layout {layout!r}, in which each group stands alone: "
            "it is for layout='minibatch'"
        )
    if batch_size is None:
        batch_size = (1, 2) if layout == "minibatch" else 1
    batches = whole_numbers("batch size", batch_size, 1)
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
                mean = enumerate_mean(problem, under.estimator, size, batch)
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
    # Rounding makes the first of equally biased ones be named.
    worst = max(failed, key=lambda r: float(f"{r.relative:.6g}"))
    prompts = f", B = {worst.batch_size}" if layout == "minibatch" else ""
    alone = layout != "minibatch" and under.inputs == ("rewards",)
    instead = climbed(under, worst.group_size) if alone and not _factors(results, tolerance) else ""
    raise Violation(
        f"{under.name} is biased: at G = {worst.group_size}{prompts} on problem {worst.problem!r} "
        f"‖E ĝ - g‖ is {worst.relative:.3g} times {'(E‖s‖² E z²)^½' if worst.flat else '‖g‖'}, the "
        f"worst of {len(failed)} failures in {len(results)} enumerations{instead}; "
        f"{_diagnosis(results, worst, tolerance)}"
        f"{under.hint if worst.relative < SINGLE else ''}"
    )
