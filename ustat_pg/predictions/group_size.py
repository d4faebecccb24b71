"""The best group size for training at a given budget, and the cost of another one (Theorem 7, group_size).

With B prompts and G outputs each, the exact MSE of grpo's gradient is (Proposition 3, minibatch)

    MSE(G, B) = (1/B) (c1 + c2/G + c3/(G(G-1))),
    c1 = tr Cov_X g(X),  c2 = E tr Σ(X),  c3 = E[σ² tr F + ‖g‖²],

so K · MSE = c1 G + c2 + c3/(G-1) at a budget of K = BG outputs. This is convex in G, least at G* = 1 +
√(c3/c1), and flat around it, so an interval of group sizes is more useful than G*. G* depends on the problem
and the policy, not on the budget: the theorem calls it universal.

Two variants keep that shape. A prompt may have its own cost, (q + rG) B = C; and prompts may be drawn without
replacement from N, which multiplies c1 by (N-B)/(N-1). In both the MSE at a spent budget is a sum of convex
functions of G, so the group sizes close to the best form an interval.

Here Σ(x) = Cov(s a | x). The matrices behind c1, c2 and c3 give the same result in each direction, and the
optimum for the asymptotic mean gap (Theorem 8, limit_law) follows from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..display.shown import Shown
from ..inference.constants import least_noise
from ..moments.record import Known, Moments, moments_of, takes_problems
from ..registry import record_of
from ..rounding import DERIVED, OPERATION, SUM
from ..validation import InputError, field, finite_array, integer, number, positive, record
from .advice import ERRS, GroupSizeAdvice, GroupSizeRow
from .closed_forms import (
    best_group_size,
    constants_of_pairs,
    costly_slope,
    grpo_error,
    left_share,
    minibatch_error,
)
from .count_tables import is_binary
from .mse import gradient_mse

_FLAT = 1.05
"""How far above the least MSE an MSE may be and still count as equally good."""
_OF_CURVES = ((), ("value",))
"""What estimators need if their errors follow from these constants."""
_LARGEST = 10**6
"""The most outputs that a budget may buy, because every affordable group size is tried."""


@record(eq=True)
class MseConstants(Shown):
    """The constants of the MSE: (1/B)(c1 + c2/G + c3/(G(G-1))) (Proposition 3, minibatch).

    Arguments:
        c1: tr Cov_X g(X), the spread of the prompts' gradients.
        c2: E tr Σ(X) = E[τ - ‖g‖²], the noise of the oracle.
        c3: E[σ² tr F + ‖g‖²], the cost of not knowing the value function.
        vanilla: E[E[‖s‖² z² | X] - ‖g(X)‖²], which replaces c2 if there is no baseline; None if it is not
            known.

    >>> constants = MseConstants(c1=0.01, c2=0.5, c3=1.0)
    >>> optimal_group_size(constants)
    11.0
    >>> round(constants.least_mse(budget=110), 12) == round(constants.mse(11, batch_size=10), 12)
    True
    """

    c1: float = field(number, minimum=0)
    c2: float = field(number, minimum=0)
    c3: float = field(number, minimum=0)
    vanilla: float | None = field(number, minimum=0, default=None)

    def mse(
        self,
        group_size: ArrayLike,
        batch_size: ArrayLike = 1,
        estimator: str = "grpo",
        population: int | None = None,
    ) -> Any:
        """The MSE(G, B) = (1/B) (f c1 + c2/G + c3/(G(G-1))), also for real G and B.

        Arguments:
            group_size: G, numbers of any shape: more than 1 for grpo, at least 1 otherwise.
            batch_size: B, positive, with a shape that broadcasts with that of G.
            estimator: grpo; oracle (without c3); or vanilla (with its own constant and without c3).
            population: N, if prompts are drawn without replacement from N: then f = (N-B)/(N-1), else f = 1.

        Returns:
            a number, or an array of the shape of G and B together.
        """
        size = finite_array("group size", group_size)
        batch = finite_array("batch size", batch_size)
        record = record_of(estimator)
        if record.whole_group or record.needs not in _OF_CURVES or not record.closed_form:
            raise InputError(
                f"estimator {estimator!r} has no curve: choose grpo, oracle or vanilla"
            )
        if record.of_pairs and size.min() <= 1:
            raise InputError(f"group size is {size.min()}: leave-one-out needs more than 1")
        if size.min() < 1:
            raise InputError(f"group size is {size.min()}: it must be at least 1")
        if batch.min() <= 0:
            raise InputError(f"batch size is {batch.min()}: it must be positive")
        share: Any = 1.0
        if population is not None:
            prompts = integer("population", population)
            if batch.max() > prompts:
                raise InputError(
                    f"batch size is {batch.max()}: without replacement it can be at most the "
                    f"population, {prompts}"
                )
            share = left_share(batch, prompts) if prompts > 1 else 0.0
        single = self.c2 if record.of_pairs or record.needs else self.vanilla
        if single is None:
            raise InputError("these constants have no value for the estimator vanilla")
        within = grpo_error(size, single, self.c3) if record.of_pairs else single / size
        error = minibatch_error(batch, self.c1, within, share)
        return float(error) if np.ndim(error) == 0 else error

    def least_mse(self, budget: float) -> float:
        """The least MSE of grpo at K = BG with real G > 1, (c1 + c2 + 2 √(c1 c3)) / K.

        It is reached at G* = 1 + √(c3/c1); if c1 = 0 it is the limit for large G.
        """
        noise = least_noise(self.c1, self.c2, math.sqrt(self.c1) * math.sqrt(self.c3))
        return noise / positive("budget", budget)


@takes_problems
def mse_constants(moments: Moments) -> MseConstants:
    """c1, c2 and c3 of a problem at its current parameters (Theorem 7, group_size) [exact].

    c1 = E‖g(X)‖² - ‖g‖², c2 = E[τ - ‖g‖²], c3 = E[σ² tr F + ‖g‖²]. The paper uses their suprema over θ. By
    Cauchy-Schwarz c3 >= 2 c1, so that G* >= 1 + √2.

    Values that may come from rounding count as 0. For c1 this means less than 1e-12 of E‖g(X)‖², or the
    effect of an error of 1e-15 of the greatest reward in each prompt's gradient; for c2 and c3 it means the
    effect of such an error in rewards that are all equal.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> mse_constants(coin.moments())
    MseConstants(c1=0.0, c2=0.0, c3=0.25, vanilla=0.125)
    """
    first = gradient_mse(moments, "oracle", 1)
    noise = 2 * gradient_mse(moments, "grpo", 2).second_order_term
    whole = float(moments.context_probs @ moments.gradient_sq)
    trace = float(moments.context_probs @ moments.fisher_trace)
    error = OPERATION * float(np.abs(moments.reward_range).max()) * math.sqrt(trace)
    # An error e in gradients of size √whole changes their squares by up to 2 e √whole + e².
    rounding = max(DERIVED * whole, error * (2 * math.sqrt(whole) + error))
    return MseConstants(
        c1=first.prompt_term if first.prompt_term > rounding else 0.0,
        c2=first.first_order_term if noise > error**2 else 0.0,
        c3=noise if noise > error**2 else 0.0,
        vanilla=gradient_mse(moments, "vanilla", 1).first_order_term,
    )


def paper_group_size(constants: MseConstants) -> float:
    """√(c3/c1), the optimum if G(G-1) is replaced by the paper's G² [reconstructed]; inf if c1 = 0.

    >>> paper_group_size(MseConstants(c1=0.01, c2=0.5, c3=1.0))
    10.0
    """
    return math.sqrt(constants.c3 / constants.c1) if constants.c1 else math.inf


def paired_constants(
    alpha: ArrayLike,
    beta: ArrayLike,
    gamma: ArrayLike,
    group_size: int,
    phi_over_tau: ArrayLike = 1.0,
) -> tuple[Any, ...]:
    """c1, c2 and c3 computed from inner products of a step's own terms Aᵢ sᵢ [exact].

    With leave-one-out advantages, a prompt's terms have

        α = E‖Aᵢ sᵢ‖² = τ + φ/(G-1),   β = E⟨Aᵢ sᵢ, Aⱼ sⱼ⟩ = E‖g(X)‖² (1 + 1/(G-1)²),

    i ≠ j, and terms of different prompts γ = ‖g‖². So c1 = β/(1 + 1/(G-1)²) - γ, and φ/τ divides α
    into c2 = τ - E‖g(X)‖² and c3 = φ + E‖g(X)‖². Nothing is clipped, so estimates stay unbiased and may be
    negative.

    Arguments:
        alpha, beta, gamma: α, β, γ, numbers or arrays.
        group_size: G, at least 2.
        phi_over_tau: φ/τ, 1 for rewards of 0 and 1 under Assumption 2.

    >>> [round(float(value), 12) for value in paired_constants(6.0, 1.25, 0.25, 3)]
    [0.75, 3.0, 5.0]
    """
    others = integer("group size", group_size, 2) - 1
    given = np.asarray(alpha), np.asarray(beta), np.asarray(gamma)
    return constants_of_pairs(*given, others, np.asarray(phi_over_tau))


def optimal_group_size(
    constants: MseConstants,
    *,
    prompt_cost: float = 0.0,
    output_cost: float = 1.0,
    population: int | None = None,
    budget: float | None = None,
) -> float:
    """G* = 1 + √(c3/c1), the real group size with the least MSE at a budget [exact]; inf if c1 = 0.

    This is for grpo; the oracle and vanilla are best at G = 1. If a prompt costs q and each output costs r,
    G* minimises (q + rG)(c1 + c2/G + c3/(G(G-1))) and is found numerically; it does not depend on the budget.
    If prompts are drawn without replacement from N, it does: c1 becomes c1 N/(N-1), and a G that uses all N
    prompts must spend the whole budget,

        G* = max(1 + √((c3/c1)(N-1)/N), K/N).

    Arguments:
        constants: constants of the problem.
        prompt_cost: q >= 0.
        output_cost: r > 0.
        population: N, if prompts are drawn without replacement.
        budget: K; give it if and only if a population is given.

    >>> constants = MseConstants(c1=0.01, c2=0.5, c3=1.0)
    >>> round(optimal_group_size(constants, population=100, budget=1024), 3)
    10.95
    >>> optimal_group_size(constants, population=50, budget=1024)
    20.48
    >>> round(optimal_group_size(constants, prompt_cost=4, output_cost=1), 3)
    18.905
    """
    fixed, per_output = _costs(prompt_cost, output_cost)
    if (population is None) != (budget is None):
        raise InputError("a population and a budget are given together, or neither is")
    least, between = 1.0, constants.c1
    if population is not None:
        prompts = integer("population", population)
        least = max(1.0, (positive("budget", budget) / prompts - fixed) / per_output)
        if prompts == 1:
            return least if constants.c1 else math.inf
        between *= prompts / (prompts - 1)
    if not between:
        return math.inf
    return max(_stationary(constants, between, fixed / per_output), least)


def _costs(prompt_cost: float, output_cost: float) -> tuple[float, float]:
    fixed, per_output = (
        number("prompt cost", prompt_cost, minimum=0),
        positive("output cost", output_cost),
    )
    if fixed / per_output > _LARGEST:
        raise InputError(
            f"prompt cost is {fixed:g}: it may be at most that of {_LARGEST:.0e} outputs, {per_output:g} each"
        )
    return fixed, per_output


def _stationary(constants: MseConstants, between: float, fixed: float) -> float:
    """The real G >= 1 at which (fixed + G)(between + c2/G + c3/(G(G-1))) is least."""
    single, pair = constants.c2 / between, constants.c3 / between
    # A cost of prompts only moves the optimum up from here.
    start: float = best_group_size(pair)
    if not fixed:
        return start
    # Where the derivative is 0, times G² (G-1)²: a quartic in G - 1 with one positive root (Descartes).
    roots = np.roots(costly_slope(fixed, single, pair))
    return 1 + max([0.0, *roots[np.abs(roots.imag) <= DERIVED * np.abs(roots)].real.tolist()])


def feasible_sizes(budget: int, least: int = 2) -> NDArray[np.int64]:
    """The group sizes from ``least`` on that divide a budget of outputs, increasing.

    >>> feasible_sizes(12).tolist()
    [2, 3, 4, 6, 12]
    """
    every = np.arange(least, budget + 1)
    return every[budget % every == 0]


def group_size_advice(
    moments: Known | MseConstants,
    budget: float,
    *,
    prompt_cost: float = 0.0,
    output_cost: float | None = None,
    population: int | None = None,
    frac_reward_zero_std: Callable[[int], ArrayLike | None] | None = None,
    wrong_norms: tuple[float, float] | None = None,
) -> GroupSizeAdvice:
    """The advice on the group size that gives grpo's gradient the least MSE at a budget (Theorem 7,
    group_size).

    Without costs the budget is a number of outputs K = BG, and the table has every G >= 2 that
    divides it. With costs the budget is a cost C, which buys B = ⌊C/(q + rG)⌋ prompts, and every G >= 2 with
    B >= 1 is feasible. group_size is the best of these, and the table has the powers of two and group_size. A
    population limits B to N; without costs, group sizes that need more prompts are not feasible.

    If c1 = 0 (one prompt, or equal gradients), more prompts gain nothing: one prompt with the whole budget is
    best, and there is no G*.

    Arguments:
        moments: the problem, or its moments, at the current parameters; or estimated constants.
        budget: K, a whole number of at least 2; with costs C, a positive number.
        prompt_cost: q, of a prompt besides its outputs.
        output_cost: r, of an output (default: 1 if only a prompt's cost is given).
        population: N, if prompts are drawn without replacement from N; the moments are those of all N, and
            ρ(x) is the share of prompts equal to x.
        frac_reward_zero_std: function of G that gives the share of groups with equal rewards, in each context
            (X,) or in all (in all if constants are given), or None if it is not known (default: the problem's
            :meth:`~ustat_pg.problems.SoftmaxBandit.frac_reward_zero_std`).
        wrong_norms: E[‖s‖² (1-z)] and E[(1-V) tr F], if constants of rewards 0 and 1 are given; they give the
            effect of a verifier that accepts wrong answers. For a problem they are known.

    >>> from ustat_pg.problems import example_problem, problem_from_mapping
    >>> advice = group_size_advice(problem_from_mapping(example_problem()), 1024)
    >>> advice.group_size, advice.g_interval
    (4, (3, 5))
    >>> round(advice.g_star_exact, 4)
    3.6903
    """
    if not isinstance(moments, MseConstants):
        frac_reward_zero_std = frac_reward_zero_std or getattr(
            moments, "frac_reward_zero_std", None
        )
        moments = moments_of(moments)
    constants = moments if isinstance(moments, MseConstants) else mse_constants(moments)
    costly = output_cost is not None or prompt_cost != 0
    if population is not None:
        integer("population", population)
    fixed, per_output = _costs(prompt_cost, 1.0 if output_cost is None else output_cost)
    total = positive("budget", budget) if costly else float(integer("budget", budget, 2))
    largest = _affordable(total, fixed, per_output)

    def spent(size: Any) -> Any:
        batch = total / (fixed + per_output * size)
        if population is not None:
            batch = np.minimum(batch, population)
        return constants.mse(size, batch, population=population)

    sizes = every = np.arange(2, largest + 1)
    if not costly:
        # Every group is so large that the population is enough for the budget.
        every = every[every * (population or largest) >= largest]
        sizes = every[largest % every == 0]
    batches = _batches(sizes, total, fixed, per_output, population)
    errors = constants.mse(sizes, batches, population=population)
    # Sizes increase; if errors are equal, the largest group is taken.
    place = len(errors) - 1 - int(errors[::-1].argmin())
    best, least = int(sizes[place]), float(errors[place])

    near = every[spent(every) <= _FLAT * least]
    if costly:
        wanted = sorted({best, *(2**k for k in range(1, largest.bit_length()))})
        sizes = np.array(wanted)
        batches = _batches(sizes, total, fixed, per_output, population)
        errors = constants.mse(sizes, batches, population=population)
    table = tuple(
        GroupSizeRow(
            group_size=int(size),
            batch_size=int(batch),
            mse=float(error),
            ratio_to_best=float(error) / least if least else 1.0,
            frac_reward_zero_std=_share(moments, frac_reward_zero_std, int(size)),
        )
        for size, batch, error in zip(sizes, batches, errors, strict=True)
    )
    costs: dict[str, Any] = {
        "prompt_cost": fixed,
        "output_cost": per_output,
        "population": population,
        "budget": None if population is None else total,
    }
    exact = optimal_group_size(constants, **costs)
    paper = paper_group_size(constants)
    if isinstance(moments, Moments) and is_binary(moments) and moments.mean_gradient_sq > 0:
        norms = moments.fisher_trace
        each = norms - moments.norm_reward, (1 - moments.value) * norms
        wrong_norms = float(moments.context_probs @ each[0]), float(moments.context_probs @ each[1])
    with_errors = None
    if wrong_norms is not None and exact < math.inf:
        with_errors = _with_errors(constants, best, wrong_norms, costs)
    real = float(spent(min(max(exact, 2.0), largest)))
    return GroupSizeAdvice(
        g_star_paper=paper if paper < math.inf else None,
        g_star_exact=exact if exact < math.inf else None,
        group_size=best,
        g_interval=(int(near[0]), int(near[-1])),
        table=table,
        ratio_to_real=least / real if real else 1.0,
        with_errors=with_errors,
    )


def _with_errors(
    constants: MseConstants, size: int, wrong: tuple[float, float], costs: dict[str, Any]
) -> tuple[float, float]:
    """The best real G, and the factor on the noise over signal, if a verifier accepts a few wrong answers:
    the gradient is 1 - ERRS times as long, and the verdict on a wrong answer has a variance.
    """
    kept, own = (1 - ERRS) ** 2, ERRS * (1 - ERRS)
    single, pairs = (max(each, 0.0) for each in wrong)
    seen = MseConstants(
        c1=kept * constants.c1,
        c2=kept * constants.c2 + own * single,
        c3=kept * constants.c3 + own * pairs,
    )
    times = float(seen.mse(size) / (kept * constants.mse(size)))
    return optimal_group_size(seen, **costs), times


def _whole(count: Any) -> Any:
    """The floor of a quotient of costs, so that 0.3 buys three things at 0.1 each."""
    return np.floor(count * (1 + SUM)).astype(np.int64)


def _affordable(total: float, fixed: float, price: float) -> int:
    """The greatest group that the budget buys for one prompt."""
    if total / price > _LARGEST:
        raise InputError(
            f"the budget pays for {total / price:,.10g} outputs: at most {_LARGEST:,} are allowed"
        )
    largest = int(_whole(np.asarray((total - fixed) / price)))
    if largest < 2:
        raise InputError(
            f"budget is {total:g}: one prompt with two outputs costs {fixed + 2 * price:g}"
        )
    return largest


def _batches(
    sizes: NDArray[np.int64], total: float, fixed: float, price: float, population: int | None
) -> NDArray[np.int64]:
    """The number of prompts that the budget buys at these group sizes, at most the population."""
    # Rounding must not remove the one prompt of an affordable group.
    bought: NDArray[np.int64] = np.maximum(_whole(total / (fixed + price * sizes)), 1)
    return bought if population is None else np.minimum(bought, population)


def _share(
    moments: Moments | MseConstants,
    frac_reward_zero_std: Callable[[int], ArrayLike | None] | None,
    size: int,
) -> float | None:
    signal = None if frac_reward_zero_std is None else frac_reward_zero_std(size)
    if signal is None:
        return None
    share = finite_array("frac_reward_zero_std", signal)
    if not share.ndim:
        return float(share)
    probs = np.empty(0) if isinstance(moments, MseConstants) else moments.context_probs
    if share.shape != probs.shape:
        raise InputError(
            f"frac_reward_zero_std has shape {share.shape}: one number, or one per context "
            f"({len(probs)}), is needed"
        )
    return float(probs @ share)
