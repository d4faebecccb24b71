"""The paper's numbered results, once: stem, label, statement, and what this project adds or corrects.

Zhou, Ye, Xu, Zhu, Gong and Shi (2026), *Demystifying Group Relative Policy Optimization: Its
Policy Gradient is a U-Statistic*, arXiv 2603.01162.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ustat_pg.validation import InputError, nearest

PAPER = "arXiv 2603.01162"


@dataclass(frozen=True)
class Result:
    """One numbered result.

    Arguments:
        label: the paper's numbering.
        statement: statement in one sentence.
        short: statement in a few plain words, for tables.
        assumptions: what it needs.
        sharper: what is exact here and an order or a bound in the paper; empty if nothing.
        reconstructed: where the formula follows the paper's proof or words, since the text that we have
            lacks it: what the paper states; empty elsewhere.
    """

    label: str
    statement: str
    short: str
    assumptions: str = ""
    sharper: str = ""
    reconstructed: str = ""

    @property
    def title(self) -> str:
        """The few plain words, with the mark [r] where the formula is reconstructed."""
        return f"{self.short} [r]" if self.reconstructed else self.short


RESULTS: dict[str, Result] = {
    "ustatistic": Result(
        "Lemma 1",
        "The grpo gradient is the U-statistic of order 2 with kernel ½ (s₁ - s₂)(z₁ - z₂).",
        "the gradient is a U-statistic, sample by sample",
        sharper="Sample by sample, grpo = g + first + second, and g + first is the oracle.",
    ),
    "mse": Result(
        "Theorem 2",
        "MSE = tr Σ/G + (σ² tr F + ‖g‖²)/(G(G-1)) at one prompt.",
        "its mean squared error at one prompt, exactly",
        sharper="Exact, as a matrix; the paper bounds the second term by an order. "
        "The explicit bound is reconstructed, and the exact term at most half of it.",
    ),
    "minibatch": Result(
        "Proposition 3",
        "A minibatch adds the spread of prompt gradients and divides everything by B.",
        "and over a minibatch of prompts",
        sharper="Exact for prompts drawn i.i.d., a fixed set, and without replacement.",
    ),
    "oracle": Result(
        "Corollary 4",
        "MSE of grpo over MSE of the oracle tends to 1.",
        "what not knowing the value costs, exactly",
        assumptions="The oracle's own error is not 0 (τ > ‖g‖², or prompts differ).",
        sharper="The ratio is exact: at one prompt its excess is of order 1/G, in a minibatch 1/G².",
    ),
    "optimality": Result(
        "Corollary 5",
        "Among baselines of the prompt only, V minimises the MSE, so grpo does asymptotically.",
        "when the value is the best baseline",
        assumptions="Assumption 2: ‖s‖² and the reward are uncorrelated given the prompt.",
        sharper="Where grpo loses to no baseline in finite G, and what V loses to b* without "
        "Assumption 2, are exact.",
    ),
    "suboptimality": Result(
        "Lemma 6",
        "The mean gap lies under ρᵀ gap₀ + L η M/(2μ(2 - Lη)) for a constant rate, and under "
        "L c² M/(2(2μc - 1))/T in the limit for c/T.",
        "how far training can end from the best return",
        assumptions="Bounded reward, L-smooth return, PL with μ, η < 2/L or c > 1/(2μ), Θ compact.",
        sharper="From the one-step recursion, whose iterates are the tightest curve of that proof; "
        "attained where the return is quadratic.",
        reconstructed="The paper bounds the mean gap by the smoothness, the PL constant, the steps and the "
        "largest MSE of the gradient, for both schedules; the constants here follow its proof.",
    ),
    "group_size": Result(
        "Theorem 7",
        "At a fixed budget the best group size is 1 + √(c₃/c₁), whatever the budget and T.",
        "which group size a budget should be spent on",
        assumptions="The bound needs those of Lemma 6. c₁ > 0: with one prompt the best is G = K.",
        sharper="√(c₃/c₁) for the paper's G² in place of G(G-1). c₃ >= 2 c₁, so it is at least 1 + √2. "
        "Universal for the bound, and for the linearised gap in one direction; with several "
        "curvatures the gap's optimum depends on c.",
        reconstructed="The paper states that one group size minimises its bound, whatever the budget, the "
        "steps and the schedule, and that constants of the problem alone give it; the formula here comes "
        "from Proposition 3.",
    ),
    "limit_law": Result(
        "Theorem 8",
        "T gap_T tends in law to Σ wₖ χ²₁, w the eigenvalues of ½ Λ^½ Γ Λ^½.",
        "the law of what is left to gain after many steps",
        assumptions="Those of Lemma 6, Hessian of constant rank on the maximisers, weak strong "
        "concavity towards them, a limit of the noise covariance; c λ_min > 1/2 for the law alone.",
        sharper="A law at finite T that follows schedule and start, from the linear recursion: its error, "
        "like the limit's, is of order 1/T. Conditional on the endpoint where the covariance depends on it.",
    ),
    "oracle_policy": Result(
        "Corollary 9",
        "At fixed B the limit weights of grpo differ from the oracle's by O(1/G²).",
        "training without the value costs O(1/G²) at fixed B",
        assumptions="Those of Theorem 8; the covariance depends on θ through Uᵀθ alone.",
        sharper="By C/(B G(G-1)) to first order, exactly in one direction, and C is known.",
    ),
    "optimal_policy": Result(
        "Corollary 10",
        "No baseline of the prompt alone has a stochastically smaller limit gap than the oracle, so "
        "none than grpo for large G.",
        "when no baseline trains better than grpo",
        assumptions="Assumption 2 as a matrix: E[Uᵀ s sᵀ U a | x] = 0. The norm form is not enough.",
        sharper="A policy with logits linear in θ never satisfies it at an interior optimum: there the "
        "mean of E[Uᵀ s sᵀ U a | x] over prompts is -Λ, and with one prompt a constant below V does "
        "better than the oracle.",
    ),
    "normalised": Result(
        "Lemma 11",
        "Advantages over the group's standard deviation give, as G grows, the U-statistic with kernel h/σ.",
        "normalised by the deviation: its limit",
        assumptions="Bounded reward and score, σ(x) > 0; a group of equal rewards has advantages 0.",
        sharper="Consistency alone: at the scale √G the two differ, by a limit that is exact; with "
        "rewards 0 and 1 mean and error are exact at every G.",
    ),
    "practical_mse": Result(
        "Theorem 12",
        "The error of practical GRPO is squared biases of order η² (token ratio) and β²η² (KL without "
        "ratio), and a variance.",
        "the error with ratios, KL and normalisation",
        assumptions="Bounded reward and score, token probabilities and the group's deviation away from "
        "0; no clipping. Where all rewards of a group are equal its advantages are 0.",
        sharper="Mean, bias and variance are exact at every distance, with rewards 0 "
        "and 1; so is the bias to order η. The leading variance is not tr Σ/σ², nor bounded by it; the "
        "ratio up to a token is biased too.",
        reconstructed="The paper bounds the MSE by two squared biases that vanish with the learning rate, "
        "the variance of an oracle that knows the value, and a term of the order of Theorem 2's second; the "
        "formulas here are derived anew.",
    ),
    "arcsine": Result(
        "Proposition 13",
        "With rewards 0 and 1 GRPO over the group's standard deviation, with a KL penalty, maximises as G "
        "grows E 2 arcsin √V(X) - β KL.",
        "as G grows, normalised GRPO climbs the arcsine",
        assumptions="Rewards 0 and 1; outputs drawn at the parameters of the step, no clipping.",
        sharper="At a fixed G it is the Bernstein objective E Φ(V(X)), E V itself at G = 2 and 3; the "
        "arcsine's weight is reached as 1 - 1/(8 G p(1-p)). Which KL depends on the estimator and its "
        "place: k3 in the loss has the gradient of the forward one, of outputs of several tokens that of "
        "no function.",
    ),
    "count_advantages": Result(
        "Beyond 1",
        "With rewards 0 and 1 an advantage that one rule makes of the group's rewards is a table "
        "(a₁(n), a₀(n)) by the number of successes; its mean is w(V) g, w the Bernstein polynomial of "
        "a₁(m+1) - a₀(m). A verifier that errs "
        "makes it w(p̃) (a - c) g, p̃ = c + (a - c) V, and advantages cut off are another table. The best of k "
        "graded rewards is a sum over thresholds of pass@k, and its error is exact at every G.",
        "what estimators in use climb, and their error",
        assumptions="Rewards 0 and 1, or the best of k graded ones; no clipping of ratios, no KL, no weights "
        "by length; a verifier errs whatever the answer's text. Not in the paper.",
        sharper="Known: the weight as a Bernstein polynomial (RL2ML), its limits (Davis and Recht), MaxRL's "
        "orders. Added: the covariance of every table at every G, the rows by the group's and by the others' "
        "deviation, a verifier that errs, the noise of max@k with graded rewards, and which trainer "
        "computes which.",
    ),
    "best_baseline": Result(
        "Beyond 2",
        "Among leave-one-out baselines by the number of the others' successes one has the least error; "
        "it is unbiased, and its best group size is usually smaller than grpo's.",
        "the best leave-one-out baseline, and its gain",
        assumptions="Rewards 0 and 1; a table made of other prompts or earlier steps. Not in the paper.",
        sharper="Known: leave-one-out baselines that shrink towards other prompts' mean. Added: the table of "
        "least gradient error, from a tridiagonal system of moments that a pool gives, and its group size.",
    ),
    "length_weights": Result(
        "Beyond 3",
        "With outputs of unequal length a loss divided by an output's own tokens has the mean "
        "∇E[z/|y|] - V ∇E[1/|y|], in general no multiple of the gradient; one divided by all tokens of the "
        "minibatch is biased by order 1/B, and both means are exact.",
        "what dividing by length climbs, and its bias",
        assumptions="On policy, no clipping, no KL; prompts drawn independently. Not in the paper.",
        sharper="Known: dividing by an output's own length favours long wrong answers (Dr. GRPO). Added: "
        "means at every G and B in closed form, and when they are the gradient of anything.",
    ),
    "adaptive_groups": Result(
        "Beyond 4",
        "Where a group's size depends on its rewards, E ĝ = w(p) g with w the sum over stops of the plan; "
        "the mean of the kernel over paths is unbiased, leave-one-out over what was drawn is not.",
        "groups sized by the rewards just seen",
        assumptions="Rewards 0 and 1; a plan looks at rewards alone. Not in the paper.",
        sharper="Known: the binomial estimate from path counts (Girshick, Mosteller and Savage). Added: what "
        "any adaptive scheme climbs, its error and cost, and an unbiased gradient for it.",
    ),
    "survivors": Result(
        "Beyond 5",
        "Where an output survives with a chance of its own, leave-one-out over survivors climbs their mean "
        "reward, times the chance that two survive.",
        "what the rollouts that survive climb",
        assumptions="Survival independent given outputs and rewards; chances held still. Not in the paper.",
        sharper="Mean and error at every group size, for any chance of survival by output or reward.",
    ),
    "turns": Result(
        "Beyond 6",
        "Where decisions end episodes, a turn's baseline is unbiased if it is made of other episodes and of "
        "what came before; with the own episode inside turn t weighs 1 - E[1/n], and baselines per turn that "
        "are added up lose Σ μ (1 - (1-q)^(G-1)) ∇q.",
        "credit over turns: what each baseline climbs",
        assumptions="On policy; episodes of a group independent. Not in the paper.",
        sharper="Known: advantages by turn and by equal state (GiGPO, GTPO). Added: the mean of each scheme "
        "at every G, its noise in a turn's own parameters, and when a per-turn baseline is the better one.",
    ),
    "reuse": Result(
        "Beyond 7",
        "A second step on the same outputs is biased although the ratio is exact: by η Cov(M̂, ĝ), Theorem 2 "
        "with M = s sᵀ + ∇s for one of the scores. Each further pass adds the same.",
        "rollouts used again: the bias of a second pass",
        assumptions="To first order in the rate; plain gradient steps. Not in the paper.",
        sharper="Known: several epochs on a batch (PPO), and that they overfit it. Added: the bias of each "
        "pass at every G and B, with the ratio of outputs or of tokens, and when it is below the noise.",
    ),
    "prompt_sampling": Result(
        "Beyond 8",
        "Prompts drawn by any law q, each weighted by ρ/q, leave the gradient unbiased; the least outputs "
        "times variance has q ~ ρ √(m/(n + κ)), and each prompt the size n with the least (n + κ) m.",
        "which prompts to draw, and how to weigh them",
        assumptions="A law made of other rewards than those in use; prompts drawn independently. Not in the "
        "paper.",
        sharper="Known: importance sampling by gradient norms, and curricula near pass rates of 1/2. "
        "Added: the exact cost of any law and sizes and its optimum, and what is climbed without weights, "
        "with weights over their mean, or if solved prompts are dropped.",
    ),
    "reward_memory": Result(
        "Beyond 9",
        "With n earlier rewards of the same prompt in the leave-one-out mean the gradient is unbiased at "
        "every G, one included; each earlier reward replaces one output of the group, and under drift a "
        "smaller weight of the memory has the least error.",
        "a memory of earlier rewards, and groups of one",
        assumptions="The best group size is for rewards of the current policy and small prompt gradients. "
        "Not in the paper.",
        sharper="Known: running means as REINFORCE's baseline. Added: the exact error at every G and n, the "
        "group size that follows, and the best weight for a policy that has moved.",
    ),
    "gradient_mse_lm": Result(
        "Figure 4",
        "On language models grpo's gradient MSE tends to the oracle's, and all fall with G.",
        "the errors of Figure 4, on language models",
        sharper="One pool of rollouts gives every baseline's error at every G. Vanilla above grpo "
        "above the oracle is no law: each model's moments predict the order.",
    ),
    "group_size_lm": Result(
        "Figure 5",
        "The optimal group size of a language model, from c₁, c₂ and c₃ of a pool of rollouts.",
        "the best group size of a language model",
        assumptions="Best for the noise, not for accuracy after training.",
    ),
}
"""Every result by stem, in the paper's order."""


def stem_of(name: str) -> str:
    """The stem of a result by its stem or its label; capitals and spaces do not count.

    >>> stem_of("mse"), stem_of("Theorem 2"), stem_of("theorem2")
    ('mse', 'mse', 'mse')
    """
    known = {_plain(stem): stem for stem in RESULTS}
    known |= {_plain(result.label): stem for stem, result in RESULTS.items()}
    if (known_stem := known.get(_plain(name))) is not None:
        return known_stem
    # One of a stem's own spelling, or of the labels.
    near = nearest(name, [*RESULTS, *(result.label for result in RESULTS.values())], 2)
    meant = f", did you mean {' or '.join(near)}?" if near else ":"
    raise InputError(
        f"claim {name!r} is unknown{meant} choose one of {', '.join(RESULTS)}, or by the paper's labels"
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).lower()


ON_LANGUAGE_MODELS = ("gradient_mse_lm", "group_size_lm")
"""The results on language models, which have a kind of their own."""

STEMS = tuple(stem for stem in RESULTS if stem not in ON_LANGUAGE_MODELS)
"""The other results that have an experiment, in the paper's order."""

ON_A_MODEL = ("gradient_mse_lm",)
"""The results that a language model of one's own can verify."""

ON_RUNS = ("suboptimality", "limit_law", "oracle_policy", "optimal_policy")
"""The results on whole training runs alone, whose problems have an interior optimum."""

KINDS = ("bandit", "tokens", "transformer", "language-model")
"""The kinds of problem: softmax bandits; token problems under a prefix softmax; the same under a
transformer; the language models that ship with the library.
"""

ON_NETWORKS = (
    "ustatistic",
    "mse",
    "minibatch",
    "oracle",
    "optimality",
    "suboptimality",
    "group_size",
    "normalised",
    "practical_mse",
    "arcsine",
    "count_advantages",
    "best_baseline",
    "turns",
    "prompt_sampling",
)
"""The results for tokens and transformers too; the others need an interior optimum."""

NETWORKS = ("tokens", "transformer")
"""The kinds of problem whose policies are networks over tokens."""
