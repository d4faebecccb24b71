"""The exact covariance and mean squared error of the gradient estimators (Theorem 2, mse;
Proposition 3, minibatch; Corollaries 4 and 5, oracle and optimality).

At one prompt, with Σ(x) = Cov(s a | x),

    Cov(ĝ_grpo | x) = Σ/G + (σ² F + g gᵀ) / (G (G-1))
    Cov(ĝ_b | x)    = (E[s sᵀ (z-b)²] - g gᵀ) / G,        where the oracle has b = V(x),

and a minibatch of B prompts drawn i.i.d. has (1/B) [Cov_X g(X) + E Cov(ĝ | X)]. The paper states
these up to O(E‖s‖²/G²); here they are exact, with G(G-1) where the paper's remainder has G².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..display.shown import Shown, rows
from ..moments.record import Known, Moments, moments_of, takes_problems
from ..registry import LARGEST, Record, parse, record_of, require_group
from ..rounding import DERIVED, GIVEN, OPERATION, SQUARE
from ..sampling.designs import require_design
from ..validation import Array, InputError, finite_array, integer, number
from .closed_forms import (
    baseline_square,
    grpo_error,
    left_share,
    memory_noise,
    minibatch_error,
    pair_noise,
    whole_group_share,
)
from .count_tables import CountTable, count_table, require_binary

Counts = Sequence[int] | NDArray[Any]
T = TypeVar("T")

_GIVEN = {
    "constant": ("constant", "a number"),
    "predicted_value": ("critic", "values, one for each context"),
}
"""The argument for values that an estimator needs and moments do not have, with a description."""


_ROWS = {
    "mse": "MSE of the minibatch gradient",
    "prompt_term": "  from the choice of prompts",
    "first_order_term": "  from single outputs, order 1/G",
    "second_order_term": "  from pairs and more, order 1/G²",
    "squared_bias": "  squared bias",
    "oracle_mse": "MSE of the oracle",
    "vanilla_mse": "MSE of vanilla",
    "paper_bound": "MSE with the explicit bound",
    "noise_to_signal": "noise to signal, tr Cov ĝ/‖E ĝ‖²",
    "cosine": "cosine of E ĝ to the gradient",
}


@dataclass(frozen=True)
class MsePrediction(Shown):
    """The MSE E‖ĝ - g‖² of a minibatch gradient and its terms.

    Arguments:
        mse: prompt_term + first_order_term + second_order_term + squared_bias.
        prompt_term: part from the choice of prompts.
        first_order_term: part from single outputs, of order 1/G: G tr Cov E[ĝ | x, one output] divided by B,
            the first-order part of Hoeffding's decomposition. For grpo it is the oracle's.
        second_order_term: part from pairs and larger sets of outputs, of order 1/G². For grpo it is the cost
            of not knowing the value; it is 0 for baselines that depend only on the prompt.
        squared_bias: ‖E ĝ - g‖²; 0 if the baseline does not use the output's own reward.
        oracle_mse, vanilla_mse: the same quantity for these estimators.
        paper_bound: the MSE with its second-order term replaced by the explicit bound
            [reconstructed]; None for estimators other than grpo.
        mean_factor: w(x), the factor between g(x) and a prompt's mean estimate, (X,).
        noise_to_signal: tr Cov ĝ / ‖E ĝ‖², which does not depend on the learning rate; None if the mean
            gradient is 0.
        cosine: cosine of the angle between E ĝ and g; None if one of them is 0.
        table: the table of the estimator, only for estimators by counts.
    """

    mse: float
    prompt_term: float
    first_order_term: float
    second_order_term: float
    squared_bias: float
    oracle_mse: float
    vanilla_mse: float
    paper_bound: float | None
    mean_factor: Array
    noise_to_signal: float | None
    cosine: float | None
    table: CountTable | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON; for an unbiased table by counts with b(0), ..., b(G-1)."""
        return super().to_dict() | {"table": self._baseline}

    @property
    def _baseline(self) -> list[float] | None:
        known = self.table is not None and self.table.unbiased
        return self.table.baseline.tolist() if self.table is not None and known else None

    def __str__(self) -> str:
        lines = [rows(vars(self), _ROWS)]
        for other, error in (("the oracle", self.oracle_mse), ("vanilla", self.vanilla_mse)):
            if error > 0:
                lines.append(f"{f'MSE over that of {other}':42} {self.mse / error:.6g}")
        if not np.allclose(self.mean_factor, 1.0):
            factors = " ".join(f"{factor:.4g}" for factor in self.mean_factor)
            lines.append(f"{'mean estimate over gradient, by prompt':42} {factors}")
        if self._baseline is not None:
            table = " ".join(f"{value:.4g}" for value in self._baseline)
            lines.append(f"{'table b(0) ... b(G-1)':42} {table}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MsePredictions:
    """Predictions at several group or batch sizes: each field of :class:`MsePrediction` as an array.

    The arrays have the broadcast shape of the sizes, (...); ``mean_factor`` is (..., X). NaN replaces None.
    The fields have the same meaning as there.
    """

    mse: Array
    prompt_term: Array
    first_order_term: Array
    second_order_term: Array
    squared_bias: Array
    oracle_mse: Array
    vanilla_mse: Array
    paper_bound: Array
    mean_factor: Array
    noise_to_signal: Array
    cosine: Array
    table: NDArray[np.object_]

    @classmethod
    def of(cls, predictions: Sequence[MsePrediction], shape: tuple[int, ...]) -> MsePredictions:
        """Each field of several predictions, as an array of this shape."""
        tables = np.empty(len(predictions), dtype=object)
        tables[:] = [one.table for one in predictions]
        arrays = {
            entry.name: np.array([getattr(one, entry.name) for one in predictions], dtype=float)
            for entry in fields(cls)
            if entry.name != "table"
        } | {"table": tables}
        return cls(**{k: array.reshape(shape + array.shape[1:]) for k, array in arrays.items()})


def with_closed_form(estimator: str, group_size: int) -> Record:
    """The record of an estimator with a closed form of its error, after a check of the group size."""
    record = record_of(estimator)
    if not (record.closed_form or record.by_count):
        raise InputError(f"{record.name} has no closed form: call ustat_pg.engines.enumerate_mse")
    require_group(estimator, group_size)
    return record


def reward_weights(
    group_size: int, memory: int, weight: float | None = None
) -> tuple[float, float]:
    """The weights u of another reward and v of an earlier one in the baseline of a memory (reward_memory).

    Arguments:
        weight: λ of the mean of the earlier rewards (default: equal weights of all rewards).
    """
    integer("memory", memory)
    if weight is None:
        return (1 / (group_size - 1 + memory),) * 2
    share = number("weight", weight, minimum=0.0, maximum=1.0)
    return (1 - share) / (group_size - 1), share / memory


def prompt_share(moments: Moments, batch_size: int, design: str) -> float:
    """The share of Cov_X g(X) that is left in the error by how prompts are drawn."""
    prompts = len(moments)
    uniform = bool(np.allclose(moments.context_probs, 1 / prompts, rtol=GIVEN, atol=0))
    require_design(design, batch_size, prompts, uniform)
    if design == "iid":
        return 1.0
    return left_share(batch_size, prompts) if design != "fixed" and prompts > 1 else 0.0


def baseline_values(
    moments: Moments, record: Record, constant: float | None, critic: ArrayLike | None
) -> Array:
    """b(x) if the baseline depends only on the prompt, else V(x), (X,)."""
    given = {"constant": constant, "critic": critic}
    for need, (name, what) in _GIVEN.items():
        if given[name] is None and need in record.needs:
            raise InputError(f"{name} is not given: the estimator {record.name} subtracts {what}")
        if given[name] is not None and need not in record.needs:
            raise InputError(f"{name} is given, which the estimator {record.name} does not take")
    if not record.of_prompt:
        return moments.value
    find: dict[str, Callable[[], Array]] = {
        "constant": lambda: np.full(len(moments), float(finite_array("constant", constant, 0))),  # type: ignore[arg-type]
        "value": lambda: moments.value,
        "optimal_baseline": lambda: moments.optimal_baseline,
        "predicted_value": lambda: finite_array("predicted values", critic, 1),  # type: ignore[arg-type]
    }
    values = find[record.needs[0]]() if record.needs else np.zeros(len(moments))
    if np.abs(values).max() > LARGEST:
        raise InputError(f"the estimator {record.name} holds numbers beyond {LARGEST:g}")
    if len(values) != len(moments):
        raise InputError(
            f"predicted values have {len(values)} entries: one per context ({len(moments)}) is needed"
        )
    return values


def _spread(whole: Array, part: Array, made_of: Array | None = None) -> Array:
    """Their difference; 0 if it is rounding noise of the total, or of the terms of both."""
    spread = whole - part
    return np.where(spread > DERIVED * (whole if made_of is None else made_of), spread, 0.0)


def each_size(
    call: Callable[[Any, Any], T], group_size: int | Counts, batch_size: int | Counts
) -> tuple[list[T], tuple[int, ...]]:
    """The values of a function at each pair of group and batch size, and their shape."""
    pair = [np.array(given, dtype=object) for given in (group_size, batch_size)]
    try:
        sizes, prompts = np.broadcast_arrays(*pair)
    except ValueError:
        shapes = " and batch size ".join(str(given.shape) for given in pair)
        raise InputError(f"group size has shape {shapes}: they do not broadcast") from None
    if not sizes.size:
        raise InputError("group size or batch size is empty: give at least one")
    found = []
    for place in np.ndindex(sizes.shape):
        try:
            found.append(call(sizes[place], prompts[place]))
        except InputError as error:
            raise InputError(f"{error}, at {list(place)}" if place else str(error)) from None
    return found, sizes.shape


@overload
def gradient_mse(
    moments: Known,
    estimator: str,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
    constant: float | None = None,
    critic: ArrayLike | None = None,
) -> MsePrediction: ...
@overload
def gradient_mse(
    moments: Known,
    estimator: str,
    group_size: Counts,
    batch_size: int | Counts = 1,
    design: str = "iid",
    constant: float | None = None,
    critic: ArrayLike | None = None,
) -> MsePredictions: ...
@overload
def gradient_mse(
    moments: Known,
    estimator: str,
    group_size: int,
    batch_size: Counts,
    design: str = "iid",
    constant: float | None = None,
    critic: ArrayLike | None = None,
) -> MsePredictions: ...
def gradient_mse(
    moments: Known,
    estimator: str,
    group_size: int | Counts,
    batch_size: int | Counts = 1,
    design: str = "iid",
    constant: float | None = None,
    critic: ArrayLike | None = None,
) -> MsePrediction | MsePredictions:
    """The exact MSE of a minibatch gradient, prompt term included (Proposition 3, minibatch).

    MSE = (1/B) [ f tr Cov_X g + E tr Σ/G + E(σ² tr F + ‖g‖²)/(G(G-1)) ] for grpo, with f = 1 for
    prompts drawn i.i.d., 0 for a fixed set used once each, (N-B)/(N-1) without replacement.

    Arguments:
        moments: moments of the problem, at the current parameters, or the problem, its file or its name, as
            for :func:`ustat_pg.compare`.
        estimator: vanilla, grpo, group-mean, oracle, constant, minimum-variance, critic, memory:4 and
            weighted-memory:4,0.3 (with 4 earlier rewards under the current policy); for rewards 0 and 1
            every table by counts too, such as std, maxrl, pass-at-k:2, bayes:1,1 or best.
        group_size: G >= 1; grpo needs 2. One, or an array of them.
        batch_size: B >= 1. One, or an array of them: the two broadcast.
        design: one of :data:`~ustat_pg.sampling.designs.DESIGNS`; the last two need uniform context
            probabilities.
        constant: subtracted number, only for the estimator constant.
        critic: V_φ(x) for every context, (X,), only for the estimator critic.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coin = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])
    >>> gradient_mse(coin, "grpo", group_size=2).mse
    0.125
    >>> gradient_mse(coin, "grpo", group_size=[2, 3, 5]).mse
    array([0.125     , 0.04166667, 0.0125    ])
    """
    known = moments_of(moments)

    def one(size: int, prompts: int) -> MsePrediction:
        return _gradient_mse(known, estimator, size, prompts, design, constant, critic)

    found, shape = each_size(one, group_size, batch_size)
    return MsePredictions.of(found, shape) if shape else found[0]


def _gradient_mse(
    moments: Moments,
    estimator: str,
    group_size: int,
    batch_size: int,
    design: str,
    constant: float | None,
    critic: ArrayLike | None,
) -> MsePrediction:
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    record = with_closed_form(estimator, size)
    share = prompt_share(moments, prompts, design)
    mean = moments.context_probs
    spread = float(mean @ moments.gradient_sq) - moments.mean_gradient_sq
    prompt_term = minibatch_error(prompts, max(spread, 0.0), 0.0, share)
    known = moments.norm_squared_advantage, moments.norm_advantage, moments.fisher_trace

    def inner(values: Array) -> float:
        # tr Cov(s (z-b) | x) = E[‖s‖² (z-b)² | x] - ‖g(x)‖².
        single = _spread(baseline_square(*known, values - moments.value), moments.gradient_sq)
        return float(mean @ single) / (size * prompts)

    oracle = prompt_term + inner(moments.value)
    vanilla = prompt_term + inner(np.zeros(len(moments)))
    second, bound, table = 0.0, None, None
    factors = np.ones(len(moments))
    if record.closed_form:
        first = inner(baseline_values(moments, record, constant, critic))
        pair = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
        if record.of_pairs and size > 1:
            second = grpo_error(size, 0.0, float(mean @ pair)) / prompts
        if "earlier" in record.needs:
            carried = parse(estimator)[1]
            past = moments.reward_variance * moments.fisher_trace
            weights = reward_weights(size, **carried)
            noise = memory_noise(size, carried["memory"], *weights, pair, past)
            second = float(mean @ noise) / (size * prompts)
        if record.of_pairs and not record.whole_group:
            bound = prompt_term + first + explicit_bound(moments, size, prompts)
        if record.whole_group:
            factors *= whole_group_share(size)
            shrink = float(factors[0]) ** 2
            prompt_term, first, second = shrink * prompt_term, shrink * first, shrink * second
    else:
        baseline_values(moments, record, constant, critic)
        require_binary(moments, record.name)
        table = count_table(estimator, size, moments)
        factors = table.weight(moments.value)
        squares = factors**2 * moments.gradient_sq
        moment = table.second_moments(moments)
        outputs = _spread(moment, squares)
        together = np.minimum(_spread(outputs, table.first_order(moments), moment), outputs)
        first, second = (
            float(mean @ (outputs - together)) / prompts,
            float(mean @ together) / prompts,
        )
        spread = float(mean @ squares) - moments.mean_gradient(factors)[0]
        prompt_term = minibatch_error(prompts, max(spread, 0.0), 0.0, share)
    square, inner_product = map(float, moments.mean_gradient(factors))
    target, variance = moments.mean_gradient_sq, prompt_term + first + second
    return MsePrediction(
        **about(variance, square, inner_product, target, nothing=no_gradient(moments)),
        prompt_term=prompt_term,
        first_order_term=first,
        second_order_term=second,
        oracle_mse=oracle,
        vanilla_mse=vanilla,
        paper_bound=bound,
        mean_factor=factors,
        table=table,
    )


def no_gradient(moments: Moments) -> float:
    """The largest square that rounding can give a gradient of 0."""
    scale = float(np.abs(moments.reward_range).max()) ** 2
    return SQUARE * scale * float(moments.context_probs @ moments.fisher_trace)


def about(
    variance: float,
    square: float,
    inner_product: float,
    target: float,
    bias: float | None = None,
    rounding: float = DERIVED,
    nothing: float = 0.0,
) -> dict[str, Any]:
    """The mse, squared_bias, noise_to_signal and cosine of an estimator, with errors from g.

    Arguments:
        variance: tr Cov ĝ.
        square, inner_product, target: ‖E ĝ‖², ⟨E ĝ, g⟩ and ‖g‖².
        bias: ‖E ĝ - g‖², if it is known with more digits than these give.
        rounding: share of the squared lengths below which the bias counts as 0.
        nothing: largest square that rounding can give a gradient of 0.
    """
    if bias is None:
        bias = square - 2 * inner_product + target
    if bias <= max(rounding * max(square, target), nothing):
        bias = 0.0
    return {
        "mse": variance + bias,
        "squared_bias": bias,
        "noise_to_signal": variance / square if square > nothing else None,
        "cosine": inner_product / (square * target) ** 0.5
        if min(square, target) > nothing
        else None,
    }


@takes_problems
def explicit_bound(moments: Moments, group_size: int, batch_size: int = 1) -> float:
    """The bound R² E‖s‖² / (B G(G-1)) on grpo's second-order term, R = z_hi - z_lo (Theorem 2).

    It is [reconstructed]: the paper gives only its order. The exact term is at most half of it, since σ² <=
    R²/4 (Popoviciu) and ‖g‖² <= σ² tr F (Cauchy-Schwarz).
    """
    integer("group size", group_size, 2)
    integer("batch size", batch_size)
    low, high = moments.reward_range
    total = float(moments.context_probs @ moments.fisher_trace)
    return grpo_error(group_size, 0.0, (high - low) ** 2 * total) / batch_size


@takes_problems
def oracle_ratio(
    moments: Moments, group_size: int, batch_size: int = 1, design: str = "iid"
) -> float:
    """MSE of grpo over MSE of the oracle (Corollary 4, oracle); tends to 1 as G grows.

    At one prompt 1 + (σ² tr F + ‖g‖²) / ((G-1)(τ - ‖g‖²)). It is NaN if both are 0, and infinite if only the
    oracle's is 0: if s a = g for every outcome (two equal arms with sure rewards), the oracle has no error
    and the ratio does not tend to 1.
    """
    prediction = gradient_mse(moments, "grpo", group_size, batch_size, design)
    low, high = moments.reward_range
    # The largest error that rounding can give instead of 0, from the rewards' spread or from the rewards.
    rest = max(DERIVED * (high - low) ** 2, (OPERATION * max(abs(low), abs(high))) ** 2)
    nothing = rest * float(moments.context_probs @ moments.fisher_trace)
    nothing /= group_size * batch_size
    if prediction.oracle_mse <= nothing:
        return float("nan") if prediction.mse <= nothing else float("inf")
    return prediction.mse / prediction.oracle_mse


@takes_problems
def grpo_beats_vanilla(moments: Moments, group_size: int) -> NDArray[np.bool_]:
    """Prompt by prompt, whether grpo has the smaller MSE than no baseline (Corollary 5, optimality).

    V² tr F + 2 V E[‖s‖² a] > (σ² tr F + ‖g‖²) / (G-1). For a binary reward, Assumption 2 and a
    small g this is about p > 1/G: on prompts solved less than once per group it fails. A tie, to
    rounding, is no win.
    """
    size = integer("group size", group_size, 2)
    gain = baseline_square(0.0, moments.norm_advantage, moments.fisher_trace, -moments.value)
    pair = pair_noise(moments.reward_variance, moments.fisher_trace, moments.gradient_sq)
    return gain > size * grpo_error(size, 0.0, pair) * (1 + DERIVED)


@takes_problems
def oracle_beats_vanilla(moments: Moments) -> NDArray[np.bool_]:
    """Prompt by prompt, whether the oracle has the smaller MSE than no baseline: V (2 b* - V) > 0.

    A V that is only rounding noise of the rewards counts as 0; then the two are the same.
    """
    noise = DERIVED * np.abs(moments.reward_range).max()
    value = np.where(np.abs(moments.value) > noise, moments.value, 0.0)
    gap = 2 * moments.optimal_baseline - value
    return value * gap > DERIVED * value**2


@takes_problems
def minimum_variance_gain(moments: Moments, group_size: int, batch_size: int = 1) -> float:
    """The MSE of the oracle minus that of the minimum-variance baseline: E[tr F (V - b*)²] / (B G).

    It is the cost of a failure of Assumption 2 (Corollary 5, optimality), and 0 if the assumption holds.
    """
    size, prompts = integer("group size", group_size), integer("batch size", batch_size)
    gap = (moments.value - moments.optimal_baseline) ** 2
    return float(moments.context_probs @ (moments.fisher_trace * gap)) / (size * prompts)
