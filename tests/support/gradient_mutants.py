"""Mutants of the gradient-level programs, and where the names that they change are used."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import simulations.arcsine
import simulations.best_baseline
import simulations.count_advantages
import simulations.length_weights
import simulations.minibatch
import simulations.mse
import simulations.normalised
import simulations.practical_mse
import simulations.problems.paths
import ustat_pg.engines.gradients.cpu
import ustat_pg.engines.gradients.tokens
import ustat_pg.estimators
import ustat_pg.predictions.mse
import ustat_pg.problems.softmax_bandit
from tests.support.mutants import mutated

PLACES = {
    "ustat_pg/estimators/linear.py": [(ustat_pg.estimators.BASELINES, "grpo")],
    "ustat_pg/predictions/mse.py": [
        (simulations.mse, "gradient_mse"),
        (simulations.mse, "gradient_covariance"),
        (simulations.minibatch, "gradient_mse"),
        (simulations.count_advantages, "gradient_mse"),
    ],
    "ustat_pg/engines/gradients/scalar.py": [(ustat_pg.engines.gradients.cpu, "bodies")],
    "ustat_pg/moments.py": [(ustat_pg.problems.softmax_bandit, "Moments")],
    "ustat_pg/estimators/shaped.py": [
        (ustat_pg.estimators.BASELINES, name)
        for name in ("std", "std-ddof1", "others-std", "maxrl", "pass-at-k")
    ],
    "ustat_pg/predictions/count_tables.py": [
        (ustat_pg.predictions.mse, "count_table"),
        (simulations.count_advantages, "count_table"),
        (simulations.count_advantages, "mean_gradient"),
        (simulations.count_advantages, "silent_share"),
        (simulations.best_baseline, "best_table"),
        (simulations.best_baseline, "best_shrinkage"),
    ],
    "ustat_pg/predictions/normalised.py": [
        (simulations.normalised, "normalised_distance"),
        (simulations.normalised, "normalised_limit"),
        (simulations.normalised, "normalised_limit_of"),
    ],
    "ustat_pg/predictions/lengths.py": [
        (simulations.length_weights, "aggregated_mean"),
        (simulations.length_weights, "token_mean_bias"),
    ],
    "ustat_pg/estimators/aggregation.py": [
        (simulations.length_weights, "token_weights"),
        (ustat_pg.engines.gradients.tokens, "token_weights"),
    ],
    "ustat_pg/predictions/objectives.py": [(simulations.arcsine, "bernstein_objective")],
    "ustat_pg/predictions/penalties.py": [(simulations.problems.paths, "kl_gradient")],
    "ustat_pg/predictions/practical.py": [(simulations.practical_mse, "leading_ratio_bias")],
}
"""Where each file's names are used."""


@dataclass(frozen=True)
class Mutant:
    """One change: in ``file``, ``old`` becomes ``new``; ``engine`` simulates."""

    name: str
    file: str
    old: str
    new: str
    engine: str = "reference"
    stems: tuple[str, ...] = ("mse", "minibatch")

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Put the changed names in the place of the true ones."""
        module = mutated(self.file, (self.old, self.new))
        for place, name in PLACES[self.file]:
            if isinstance(place, dict):
                patch.setitem(place, name, getattr(module, place[name].__name__))
            else:
                patch.setattr(place, name, module if name == "bodies" else getattr(module, name))
        if self.file == BODIES:
            # The lanes take their estimators from the scalar bodies: compiled anew with them.
            lanes = mutated(LANES)
            lanes.__dict__["coefficients"] = module.coefficients
            patch.setattr(ustat_pg.engines.gradients.cpu, "lanes", lanes)


LANES = "ustat_pg/engines/gradients/lanes.py"

GRPO = "    return rewards - others\n"


ESTIMATORS, PREDICTIONS, BODIES, MOMENTS, SHAPED, TABLES, NORMALISED, *OTHERS = PLACES
LENGTHS, TOKENS, OBJECTIVES, PENALTIES, PRACTICAL = OTHERS
COUNTS = ("count_advantages",)
BEST = ("best_baseline",)
LENGTH = ("length_weights",)
ARCSINE = ("arcsine",)

MUTANTS = [
    Mutant("1/G for 1/(G-1)", ESTIMATORS, "keepdims=True) - rewards) / (size - 1)",
           "keepdims=True) - rewards) / size"),
    Mutant("own reward in the baseline", ESTIMATORS,
           "(xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)",
           "xp.sum(rewards, axis=-1, keepdims=True) / size"),
    Mutant("own reward, divided by G-1", ESTIMATORS,
           "(xp.sum(rewards, axis=-1, keepdims=True) - rewards) / (size - 1)",
           "xp.sum(rewards, axis=-1, keepdims=True) / (size - 1)"),
    Mutant("std-normalised", ESTIMATORS, GRPO,
           "    spread = xp.std(rewards, axis=-1, keepdims=True)\n"
           "    return (rewards - others) / xp.where(spread > 0, spread, xp.ones_like(spread))\n"),
    Mutant("stale baseline from another context", ESTIMATORS, GRPO,
           "    return rewards - xp.roll(xp.mean(rewards, axis=-1, keepdims=True), 1, axis=-2)\n",
           stems=("minibatch",)),
    Mutant("sign of the baseline", ESTIMATORS, GRPO, "    return rewards + others\n"),
    Mutant("G^2", PREDICTIONS, "pairs = size * (size - 1) * prompts", "pairs = size**2 * prompts"),
    Mutant("missing ||g||^2", PREDICTIONS,
           "noise = moments.reward_variance * moments.fisher_trace + moments.gradient_sq\n",
           "noise = moments.reward_variance * moments.fisher_trace\n"),
    Mutant("sigma2 dropped", PREDICTIONS,
           "noise = moments.reward_variance * moments.fisher_trace + moments.gradient_sq\n",
           "noise = moments.fisher_trace + moments.gradient_sq\n"),
    Mutant("prompt term not divided by B", PREDICTIONS, "        return 1 / batch_size\n",
           "        return 1.0\n", stems=("minibatch",)),
    Mutant("covariance without the pairs", PREDICTIONS, "/ (size * (size - 1))\n",
           "/ (size * size)\n", stems=("mse",)),
    Mutant("compiled: 1/G for 1/(G-1)", BODIES, "-sums[0, b] / (group - 1.0)", "-sums[0, b] / group",
           "cpu"),
    Mutant("compiled: group mean for grpo", BODIES, "coef[e, b, 0] = group / (group - 1.0)",
           "coef[e, b, 0] = 1.0", "cpu"),
    Mutant("compiled: mean over prompts not squared", BODIES,
           "square(coef[one], gram) * per_prompt * per_prompt",
           "square(coef[one], gram) * per_prompt", "cpu", ("minibatch",)),
    Mutant("compiled: prompts share their outputs' draws", BODIES,
           "words_at(start // 4, slot, rep, key)", "words_at(start // 4, 0, rep, key)",
           "cpu", ("minibatch",)),
    # The record that predictions read, which engines must not.
    Mutant("moments: b* halfway to V", MOMENTS,
           "self.value + np.where(moving, self.norm_advantage / trace, 0.0)",
           "self.value + np.where(moving, self.norm_advantage / trace / 2, 0.0)",
           stems=("optimality",)),
    Mutant("moments: cross term of the centring lost", MOMENTS,
           "- 2 * shift * self.norm_advantage", "- shift * self.norm_advantage",
           stems=("mse",)),
    # Tables by counts: predictions, estimators, and the compiled bodies that look advantages up.
    Mutant("counts: a failure beside one success more", TABLES,
           "self.successes[1:] - self.failures[:-1]", "self.successes[1:] - self.failures[1:]",
           "cpu", COUNTS),
    Mutant("counts: a success and a failure do not meet", TABLES,
           "won[2:] ** 2 - 2 * won[1:-1] * lost[1:-1] + lost[:-2] ** 2",
           "won[2:] ** 2 + lost[:-2] ** 2", "cpu", COUNTS),
    Mutant("counts: silent groups of successes alone", TABLES,
           "moments.context_probs @ (value**size + (1 - value) ** size)",
           "moments.context_probs @ value**size", "cpu", COUNTS),
    Mutant("counts: ddof always 1", SHAPED, "max(size - ddof, 1)", "max(size - 1, 1)",
           "cpu", COUNTS),
    Mutant("counts: the mean of the others for MaxRL", SHAPED,
           "_divided(xp, rewards - mean, mean, mean <= 0)",
           "_divided(xp, rewards - mean, mean - rewards / rewards.shape[-1], mean <= rewards)",
           "cpu", COUNTS),
    Mutant("counts, compiled: one success too few", BODIES,
           "return int(whole + group * asked.centre[x] + 0.5)",
           "return int(whole + group * asked.centre[x] - 0.5)", "cpu", COUNTS),
    # Outputs of unequal length.
    Mutant("lengths: the root of the length", LENGTHS,
           '"sequence-mean": np.reciprocal', '"sequence-mean": lambda length: length**-0.5',
           "cpu", LENGTH),
    Mutant("lengths: the other output has no tokens", LENGTHS,
           "reward * chance ** max(group - 2, 0)",
           "value * chance ** max(group - 2, 0)", "cpu", LENGTH),
    Mutant("lengths: no covariance of sum and tokens", LENGTHS,
           "variance * gradient / mean - covariance", "variance * gradient / mean", "cpu", LENGTH),
    Mutant("lengths: a divisor for each group", TOKENS,
           '"token-mean": ((_PROMPTS, _GROUP), ())', '"token-mean": ((_GROUP,), (_PROMPTS,))',
           "cpu", LENGTH),
    # The limits of Lemma 11.
    Mutant("normalised: the deviation's noise is added, as if it were uncorrelated", NORMALISED,
           "naive - 0.75 *", "naive + 0.25 *", "cpu", ("normalised",)),
    Mutant("normalised: the variance's noise for the deviation's", NORMALISED,
           "/ (4 * square**2)", "/ square**2", "cpu", ("normalised",)),
    Mutant("normalised: the variance's noise, graded rewards", NORMALISED,
           "/ (2 * deviation**3)", "/ deviation**3", "cpu", ("normalised",)),
    Mutant("normalised, compiled: ddof 1", BODIES, "1.0 / sqrt(squares * share)",
           "1.0 / np.sqrt(squares / (group - 1))", "cpu", ("normalised",)),
    # The bias of old outputs.
    Mutant("practical: of order η", PRACTICAL, "return rate**2 * (steps", "return rate * (steps",
           "cpu", ("practical_mse",)),
    Mutant("noise-to-signal: of the gradient's length", PREDICTIONS,
           "noise_to_signal=variance / square if", "noise_to_signal=variance / target if",
           "cpu", COUNTS),
    Mutant("best table: neighbours do not hold one another back", TABLES, "off[1:] = -pair",
           "off[1:] = 0.0", "cpu", BEST),
    Mutant("best shrinkage: rewards and norms apart", TABLES,
           "top = third + float(probs @ (off * moments.norm_advantage))", "top = third",
           "cpu", BEST),
    # Objectives and penalties of Proposition 13.
    Mutant("arcsine: a success fewer is enough", OBJECTIVES, "bdtrc(np.arange(size), size,",
           "bdtrc(np.arange(size) - 1.0, size,", "cpu", ARCSINE),
    Mutant("arcsine: prefixes all alike", PENALTIES, "held = 0.0 - passed *", "held = 0.0 -",
           "cpu", ARCSINE),
    Mutant("arcsine: k3 in the loss taken for the reverse divergence", PENALTIES,
           '"k3": lambda p, r: p - r,', '"k3": lambda p, r: p * np.log(p / r),', "cpu", ARCSINE),
]  # fmt: skip

ENDINGS = (
    ": grpo",
    ": vanilla",
    ": minimum-variance",
    "covariance along a direction",
    "b* -0.5",
    "b* +0.5",
    "by how much",
    ": std",
    ": maxrl",
    ": mean of std",
    ": std with dynamic sampling",
    ": noise-to-signal of std",
    ": distance",
    "/|y|: mean of grpo",
    "bias with 3 prompts",
    ": error about g/σ",
    ": squared bias after steps: 1",
    ": best table least",
    ": shrinkage least",
    ": work of std beyond grpo's",
    ": work of k3 in the loss",
)
