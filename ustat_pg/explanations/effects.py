"""The effects of a trainer's options, or of an estimator given by name, in numbers.

Pass rates alone say nothing about scores. If only these are known, the numbers are for prompts whose scores
have E‖s‖² = 1 whatever the reward, and whose gradients g(x) are small, orthogonal, and of squared length
proportional to p(1-p). Then an error is the variance of leading order: RLOO's is G/(G-1) times the oracle's,
and the squared bias is about as small as the squared gradient, 1e-12. Noise to signal is in units of
E‖s‖²/‖∇J‖²: multiply it by this ratio for your model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..catalogue import Meaning, named, resolve
from ..moments.record import HasMoments, Moments, moments_of
from ..predictions import CountTable, best_table, count_table, frac_reward_zero_std, gradient_mse
from ..predictions.count_tables import centred
from ..registry import parse
from ..sampling.plans import SCHEMES
from ..validation import InputError, argument, finite_array, integer, positive, shares
from .explanation import Explanation

PASS_RATES = tuple(k / 10 for k in range(1, 10))
"""The pass rates that are used if none are given."""

GRID = tuple(k / 20 for k in range(21))
"""The pass rates at which w is shown."""

_SMALL = 1e-12
"""‖g(x)‖² divided by p(1-p) E‖s‖², for prompts of which only the pass rate is known."""


def moments_of_pass_rates(
    pass_rates: ArrayLike, gradient_norms: ArrayLike | None = None
) -> Moments:
    """Moments of equally likely prompts of which only the pass rates are known.

    They assume E‖s‖² = 1 for every reward, and orthogonal gradients with ‖g(x)‖² = 1e-12 p(1-p), or with
    given norms up to a factor.

    Arguments:
        pass_rates: pass rate of each prompt, (X,), in [0, 1].
        gradient_norms: ‖g(x)‖ of each, (X,), in any unit; 0 at pass rates 0 and 1.

    >>> from ustat_pg.predictions import gradient_mse
    >>> moments = moments_of_pass_rates([0.2])
    >>> oracle, rloo = (gradient_mse(moments, name, 4).mse for name in ("oracle", "grpo"))
    >>> round(rloo / oracle, 9)
    1.333333333
    """
    p = shares("pass rate", pass_rates, 1)
    chance, spread = np.full(len(p), 1 / len(p)), p * (1 - p)
    lengths = np.sqrt(_SMALL * spread)
    if gradient_norms is not None:
        norms = finite_array("gradient norms", gradient_norms, 1, minimum=0)
        if norms.shape != p.shape:
            raise InputError(
                f"there are {len(norms)} gradient norms and {len(p)} pass rates: give one for each"
            )
        if not norms.any() or norms[spread == 0].any():
            raise InputError(
                f"gradient norms are {norms.tolist()}: one must be positive, and they must be 0 at pass "
                "rates 0 and 1"
            )
        # Their unit is chosen so that the gradients are as small as without them.
        lengths = norms * np.sqrt(_SMALL * spread.max()) / norms.max()
    return Moments(
        context_probs=chance,
        value=p,
        reward_variance=spread,
        fisher_trace=np.ones(len(p)),
        norm_advantage=np.zeros(len(p)),
        norm_squared_advantage=spread,
        gradient_sq=lengths**2,
        mean_gradient_sq=float(np.sum((chance * lengths) ** 2)),
        reward_range=(0.0, 1.0),
        weighted_gradient=lambda weights: np.asarray(weights) * chance * lengths,
    )


def explain(
    estimator: Any,
    *,
    group_size: int | None = None,
    pass_rates: ArrayLike | None = None,
    moments: Moments | HasMoments | None = None,
    rate: float | None = None,
    gradient_norms: ArrayLike | None = None,
) -> Explanation:
    """Explain what a framework's options, or one of this library's estimators, do to rewards 0 and 1.

    An advantage function is evaluated on groups of rewards 0 and 1, and then explained in the same way.

    Arguments:
        estimator: the name of one of this library's estimators; or a framework and its options, a file, a
            mapping or a config of options, as :func:`ustat_pg.catalogue.resolve` reads them:
            ``explain(trainer.args)``; or the meaning that it returns; or a function from rewards (n, G) to
            advantages of that shape, in NumPy or torch.
        group_size: G; it replaces the group size of the options.
        pass_rates: pass rates of equally likely prompts (default: .1, .2, ..., .9).
        moments: a problem, or its moments, in place of pass rates.
        rate: learning rate, for options that take several passes over the same outputs.
        gradient_norms: ‖g(x)‖ at each pass rate, in any unit (default: proportional to √(p(1-p))).

    Raises:
        InputError: a name or value is unknown, the group size is missing or too small, rewards are not 0 or
            1, or both moments and pass rates are given.

    >>> verl = explain("verl adv_estimator=grpo rollout.n=2", pass_rates=[0.2])
    >>> verl.estimator, verl.unbiased, [round(w, 4) for w in verl.mean_factor]
    ('std-ddof1', False, [0.7071])
    >>> explain("group-mean", group_size=4, pass_rates=[0.2]).mean_factor
    [0.75]
    >>> mine = explain(lambda z: z - z.mean(-1, keepdims=True), group_size=4)
    >>> str(mine.alike), mine.mean_factor[0]
    ('group-mean', 0.75)
    """
    if isinstance(estimator, str) and estimator in SCHEMES:
        raise InputError(
            f"{estimator} is a way of sampling: call ustat_pg.explanations.explain_scheme"
        )
    if moments is not None and pass_rates is not None:
        raise InputError("a problem has its own pass rates: give one of the two")
    if gradient_norms is not None and pass_rates is None:
        raise InputError("gradient norms need pass rates: give one norm for each")
    assumed = moments is None
    if moments is None:
        rates = PASS_RATES if pass_rates is None else pass_rates
        moments = moments_of_pass_rates(rates, gradient_norms)
    else:
        moments = moments_of(moments)
    function = estimator if callable(estimator) and not isinstance(estimator, type) else None
    name = named(estimator)
    if isinstance(estimator, Meaning):
        meaning: Meaning | None = estimator
    else:
        meaning = None if function or name else resolve(estimator, group_size)
    size = integer("group size", group_size_of(group_size, meaning))
    if rate is not None and (meaning is None or meaning.passes <= 1):
        raise InputError(
            f"rate is {rate}: it is for options that take several passes over the same outputs, and here "
            "there is one pass"
        )
    common: dict[str, Any] = {
        "group_size": size,
        "frac_reward_zero_std": frac_reward_zero_std(moments, size),
        "best_table": best_table(moments, size).baseline.tolist(),
        "pass_rates": moments.value.tolist(),
        "scale": 1.0 if meaning is None else meaning.scale,
        "meaning": meaning,
        "assumed": assumed,
        "gradient_norms": None
        if gradient_norms is None
        else np.asarray(gradient_norms, float).tolist(),
        "rate": None if rate is None else positive("rate", rate),
    }
    if function is not None:
        from ..testing.tables import namesake, table_of_function

        called, table = table_of_function(function, integer("group size", size, 2))
        common |= {"function": True, "alike": namesake(table)}
        return _of_table(called, table, table.estimator, moments, common)
    if meaning is not None:
        name = meaning.estimator
        if name is None:
            return Explanation(meaning.row.name, **common)
    assert name is not None
    name = centred(name, moments)
    record = parse(name)[0]
    if not record.by_count:
        raise InputError(
            f"{record.name} is not a table by the number of successes: call gradient_mse, or "
            f"ustat-pg predict, with a problem"
        )
    table, scaled = count_table(name, size, moments), name
    if meaning is not None and meaning.factor != 1:
        table = table.scaled(meaning.factor)
        scaled = table.estimator
    called = record.name + name[len(name.partition(":")[0]) :]
    return _of_table(called, table, scaled, moments, common)


def _of_table(
    called: str, table: CountTable, scaled: str, moments: Moments, common: dict[str, Any]
) -> Explanation:
    """The explanation of a table; ``scaled`` is its name as an estimator."""
    size, assumed = table.group_size, common["assumed"]
    error = gradient_mse(moments, scaled, size)
    oracle, best, rloo = (
        gradient_mse(moments, other, size).noise_to_signal if size > 1 or other != "grpo" else None
        for other in ("oracle", "best", "grpo")
    )
    noise, shown = error.noise_to_signal, np.union1d(GRID, moments.value)
    return Explanation(
        called,
        unbiased=table.unbiased,
        weight={"pass_rate": shown.tolist(), "w": table.weight(shown).tolist()},
        mse=error.mse,
        noise_to_signal=_times(noise, moments.mean_gradient_sq if assumed else 1.0),
        cosine=error.cosine,
        mean_factor=error.mean_factor.tolist(),
        noise_to_rloo=_over(noise, rloo),
        noise_to_oracle=_over(noise, oracle),
        best_noise_to_rloo=_over(best, rloo),
        **common,
    )


def group_size_of(group_size: int | None, meaning: Meaning | None) -> int:
    """G, from the argument or from the options."""
    size = group_size if meaning is None else meaning.group_size
    if size is None:
        option = meaning and f"{meaning.framework.of_kind('group size')[0].name}=G or "
        raise InputError(
            f"group size is not given: write {option or ''}{argument('group_size', 'G')}"
        )
    return size


def _times(one: float | None, other: float) -> float | None:
    return None if one is None else float(one * other)


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else float(one / other)
