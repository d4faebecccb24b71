"""``ustat-pg predict --plan``: what a plan of sampling climbs, its noise, and the outputs it draws."""

from __future__ import annotations

import json

from ..predictions import PlanPrediction, plan_mse
from ..problems import SoftmaxBandit
from ..sampling import SCHEMES, Plan
from ..validation import InputError

__all__ = ["printed_plan"]

_ROWS = {
    "expected_size": "outputs drawn for a prompt that counts",
    "mse": "MSE of the minibatch gradient",
    "squared_bias": "  squared bias",
    "noise_to_signal": "noise to signal, tr Cov ĝ/‖E ĝ‖²",
    "critical_budget": "outputs a step at which they are equal",
    "cosine": "cosine of E ĝ to the gradient",
}


def printed_plan(
    problem: SoftmaxBandit, plan: str, estimator: str | None, batch_size: int, as_json: bool
) -> str:
    """A prediction under a plan, as rows or as one JSON object; the unbiased estimator beside it.

    Arguments:
        problem: what the policy is trained on; rewards 0 and 1.
        plan: in words, or the name of a published scheme.
        estimator: as of :func:`~ustat_pg.predictions.plan_weight`; the scheme's own, or sequential,
            unless given.
        batch_size: B.
        as_json: whether the answer is JSON.
    """
    scheme = SCHEMES.get(plan)
    name = estimator or (scheme.estimator if scheme else "sequential")
    found = plan_mse(problem, plan, name, batch_size)
    try:
        unbiased = plan_mse(problem, plan, "sequential", batch_size)
    except InputError:
        # A plan that may stop at one output has none.
        unbiased = None
    if as_json:
        return json.dumps(
            {
                "plan": Plan.parse(plan).text,
                "baseline": name,
                **_record(found),
                "sequential": None if unbiased is None else _record(unbiased),
            }
        )
    lines = [f"{'plan':42} {Plan.parse(plan).text}", f"{'baseline':42} {name}"]
    lines += [
        f"{text:42} {getattr(found, key):.10g}"
        for key, text in _ROWS.items()
        if getattr(found, key) is not None
    ]
    factors = " ".join(f"{factor:.4g}" for factor in found.mean_factor)
    lines.append(f"{'mean estimate over gradient, by prompt':42} {factors}")
    if name != "sequential" and unbiased is not None and unbiased.critical_budget is not None:
        lines.append(
            f"{'the same, unbiased: outputs at noise = signal':46} {unbiased.critical_budget:.6g}"
        )
    return "\n".join(lines)


def _record(found: PlanPrediction) -> dict[str, object]:
    return {
        **{key: getattr(found, key) for key in _ROWS},
        "mean_factor": found.mean_factor.tolist(),
        "sizes": found.sizes.tolist(),
    }
