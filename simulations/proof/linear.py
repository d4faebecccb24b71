"""Lemma 1 to Corollary 5: estimators that are linear in the rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ustat_pg.algebra import Law, Sum, distinct
from ustat_pg.inference.constants import least_noise
from ustat_pg.moments.record import least_baseline
from ustat_pg.predictions import closed_forms as formulas
from ustat_pg.validation import needed

from .statement import Statement

with needed("a proof by computer algebra", "proof"):
    import sympy

G, B, N, K = sympy.symbols("G B N K", positive=True)
c1, c2, c3 = sympy.symbols("c1 c2 c3", positive=True)
b, low, high = sympy.symbols("b z_lo z_hi", real=True)
LAW = Law()
V, T0, T1, T2 = (LAW.moment(text) for text in ("z", "s s", "s s z", "s s z z"))
VARIANCE = LAW.moment("z z") - V**2
SQUARE = LAW.inner("s z", "s z")
"""‖g‖², g = E s z."""
CROSS, ADVANTAGE = T1 - V * T0, T2 - 2 * V * T1 + V**2 * T0
"""E‖s‖² a and E‖s‖² a², a = z - V."""

ORACLE = distinct(G, "s z") / G - V * distinct(G, "s") / G
VANILLA = distinct(G, "s z") / G
CONSTANT = VANILLA - b * distinct(G, "s") / G
GRPO = VANILLA - distinct(G, "s", "z") / (G * (G - 1))
GROUP_MEAN = VANILLA - distinct(G, "s") * distinct(G, "z") / G**2


def pair() -> Any:
    """σ² tr F + ‖g‖² by the closed form."""
    return formulas.pair_noise(VARIANCE, T0, SQUARE)


def single(shift: Any = 0) -> Any:
    """tr Cov(s (z-b)) by the closed form, b = V + shift."""
    return formulas.baseline_square(ADVANTAGE, CROSS, T0, shift) - SQUARE


def error(estimate: Sum, law: Law = LAW) -> Any:
    """E‖ĝ‖² - ‖E ĝ‖², the trace of its covariance.

    A trace is one quadratic form, and the algebra uses only this property. So a proof
    for the trace also holds for Cov(ĝ) in every direction.
    """
    mean = law.mean(estimate)
    share = sympy.cancel(mean / law.moment("s z"))
    return law.mean(estimate * estimate) - share**2 * law.inner("s z", "s z")


def reading(total: Sum) -> Any:
    """A sum as a combination of names of what it adds up."""
    return sum(c * sympy.Symbol(f"Σ {'·'.join(map(str, k))}") for k, c in total.terms.items())


def lemma_1() -> Iterator[Statement]:
    """Equalities for each sample, without means: sums over the group's own scores and rewards are equal."""
    pairs = G * (G - 1)
    straight = distinct(G, "s z", "") + distinct(G, "", "s z")
    crossed = distinct(G, "s", "z") + distinct(G, "z", "s")
    kernel = (straight - crossed) / (2 * pairs)

    v_statistic = (straight - crossed) / (2 * G**2)
    yield Statement(
        "grpo is the U-statistic with kernel ½(s₁-s₂)(z₁-z₂)",
        reading(kernel),
        reading(GRPO),
        {
            "the V-statistic": reading(v_statistic),
            "the kernel without ½": reading(2 * kernel),
            "the kernel s₁ z₁": reading(VANILLA),
            "the full group's mean": reading(GROUP_MEAN),
        },
        "every G and every array of scores and rewards",
    )
    first = VANILLA - V * distinct(G, "s") / G
    second = -(distinct(G, "s", "z") / pairs) + V * distinct(G, "s", "") / pairs
    yield Statement(
        "grpo is the oracle and a part of second order",
        reading(first + second),
        reading(GRPO),
        {"the first part alone": reading(first)},
        "every G and every array of scores and rewards",
    )
    yield Statement(
        "both parts are uncorrelated",
        LAW.mean(first * second),
        0,
        {"with z for a": LAW.mean(first * distinct(G, "s", "z")) / pairs},
    )


def theorem_2() -> Iterator[Statement]:
    """Error, mean and second-order term of every estimator that is linear in the rewards."""
    within = formulas.grpo_error(G, single(), pair())
    yield Statement(
        "covariance of grpo",
        error(GRPO),
        within,
        {
            "no second-order term": single() / G,
            "G² for G(G-1)": single() / G + pair() / G**2,
            "‖g‖² missing in it": within - SQUARE / (G * (G - 1)),
            "E z² for σ²": within + V**2 * T0 / (G * (G - 1)),
            "σ² tr F missing": within - VARIANCE * T0 / (G * (G - 1)),
            "Σ without g gᵀ": within + SQUARE / G,
            "the explicit bound": formulas.grpo_error(G, single(), (high - low) ** 2 * T0),
        },
    )
    for name, estimate, shift in (
        ("the oracle", ORACLE, 0),
        ("vanilla", VANILLA, -V),
        ("a constant baseline", CONSTANT, b - V),
    ):
        yield Statement(f"covariance of {name}", error(estimate), single(shift) / G)
    yield Statement(
        "covariance of group-mean",
        error(GROUP_MEAN),
        formulas.whole_group_share(G) ** 2 * within,
        {"as grpo": within, "once (G-1)/G": (G - 1) / G * within},
    )
    for name, estimate, share in (
        ("grpo", GRPO, 1),
        ("the oracle", ORACLE, 1),
        ("vanilla", VANILLA, 1),
        ("a constant baseline", CONSTANT, 1),
        ("group-mean", GROUP_MEAN, formulas.whole_group_share(G)),
    ):
        gradient = LAW.moment("s z")
        yield Statement(f"mean of {name}", LAW.mean(estimate), share * gradient)
    # The bound: two sums of squares are what it leaves. Of a, whose mean is 0, and two outputs
    # ‖s₁a₂ - s₂a₁‖² = ‖s₁‖² a₂² + ‖s₂‖² a₁² - 2⟨s₁a₁, s₂a₂⟩.
    about = Law(known={"z": 0})
    swapped = (distinct(2, "s s", "z z") - distinct(2, "s z", "s z")) / 2
    noise = about.moment("z z") * T0
    yield Statement(
        "σ² tr F - ‖g‖² is the mean of ½‖s₁a₂ - s₂a₁‖², at least 0",
        about.mean(swapped),
        noise - SQUARE,
        {"σ² tr F + ‖g‖²": noise + SQUARE},
        "every law",
    )
    reward = distinct(1, "z")
    yield Statement(
        "R²/4 - σ² is E (z_hi - z)(z - z_lo) and a square, at least 0",
        LAW.mean((high - reward) * (reward - low)) + (V - (low + high) / 2) ** 2,
        (high - low) ** 2 / 4 - VARIANCE,
        scope="every law of rewards from z_lo to z_hi",
    )
    width = (high - low) ** 2
    yield Statement(
        "the explicit bound less twice the term is 4 tr F (R²/4 - σ²) + 2 (σ² tr F - ‖g‖²), at least 0",
        4 * T0 * (width / 4 - VARIANCE) + 2 * (VARIANCE * T0 - SQUARE),
        G
        * (G - 1)
        * (formulas.grpo_error(G, 0, width * T0) - 2 * formulas.grpo_error(G, 0, pair())),
        scope="every G and every law of rewards from z_lo to z_hi",
    )


class Prompts(Law):
    """The law of the prompts of a minibatch, each with an estimate ĝ(x) of mean g(x).

    Arguments:
        within: E tr Cov(ĝ | X), which only adds to the square of an estimate.
        population: N if each of N prompts is drawn at most once; None if prompts are independent.
        other: another vector of the prompt, whose product with g takes the place of ‖g‖²; by default g.
    """

    def __init__(self, within: Any, population: Any = None, other: str = "g") -> None:
        super().__init__(vectors=("g", other), centred=())
        self.within, self.population = within, population
        self.square, self.mean_square = self.moment(f"{other} g"), self.inner(other, "g")
        self.between = self.square - self.mean_square

    def expected(self, member: Any) -> Any:
        if len(member) == 1:
            return self.square + self.within
        if self.population is None:
            return self.mean_square
        # A prompt cannot form a pair with itself among the ordered pairs of N prompts.
        pairs = self.population**2 * self.mean_square - self.population * self.square
        return pairs / (self.population * (self.population - 1))


def proposition_3() -> Iterator[Statement]:
    """Three ways to draw prompts; the second level of sums runs over prompts."""
    within = sympy.Symbol("E tr Cov(ĝ|X)", positive=True)
    scope = "every B, every G and every law"

    def minibatch(law: Prompts, batch: Any) -> Any:
        estimate = distinct(batch, "g", vectors=("g",)) / batch
        return law.mean(estimate * estimate) - law.mean_square

    law = Prompts(within)
    formula = formulas.minibatch_error(B, law.between, within)
    rivals = {
        "no prompt term": within / B,
        "inner terms not divided by B": law.between / B + within,
        "a fixed set's": formulas.minibatch_error(B, law.between, within, 0),
    }
    yield Statement(
        "covariance of a minibatch, prompts i.i.d.", minibatch(law, B), formula, rivals, scope
    )
    law = Prompts(within, N)
    share = formulas.left_share(B, N)
    rivals = {
        "(N-B)/N": formulas.minibatch_error(B, law.between, within, (N - B) / N),
        "as i.i.d.": formula,
    }
    yield Statement(
        "the same without replacement",
        minibatch(law, B),
        formulas.minibatch_error(B, law.between, within, share),
        rivals,
        scope,
    )
    yield Statement(
        "the same of a fixed set, each prompt once",
        minibatch(law, N),
        formulas.minibatch_error(N, law.between, within, 0),
        {"as i.i.d.": formula.subs(B, N)},
        scope,
    )
    yield Statement(
        "noise of K = BG outputs",
        K * formulas.minibatch_error(K / G, c1, formulas.grpo_error(G, c2, c3)),
        formulas.budget_noise(G, c1, c2, c3),
        {"prompt term divided by G": c1 + c2 + c3 / (G - 1)},
        scope,
    )


def corollary_4() -> Iterator[Statement]:
    """The ratio of grpo's error to the oracle's."""
    excess = pair() / ((G - 1) * single())
    yield Statement(
        "error of grpo over the oracle's, at one prompt",
        error(GRPO) / error(ORACLE),
        formulas.grpo_error(G, single(), pair()) / (single() / G),
        {
            "1 + 1/G": 1 + 1 / G,
            "(G/(G-1))²": (G / (G - 1)) ** 2,
            "excess of order 1/G²": 1 + excess / G,
        },
        "every G and every law whose oracle has an error",
    )
    yield Statement(
        "the same of a minibatch",
        formulas.budget_noise(G, c1, c2, c3) / (c1 * G + c2),
        1 + c3 / ((G - 1) * (G * c1 + c2)),
        {"excess of order 1/G": 1 + c3 / ((G - 1) * c2)},
        "every G, every B, every law",
    )


def corollary_9() -> Iterator[Statement]:
    """The excess of grpo's noise over the oracle's; to first order both limits differ linearly in it."""
    yield Statement(
        "covariance of grpo less the oracle's",
        error(GRPO) - error(ORACLE),
        formulas.grpo_error(G, 0, pair()),
        {"of order 1/G": pair() / G, "of order 1/G³": pair() / G**3},
    )


def corollary_5() -> Iterator[Statement]:
    """The best constant baseline, and the differences between estimators."""
    noise = error(CONSTANT)
    best = least_baseline(V, CROSS, T0)
    yield Statement(
        "the slope of the error in b is 0 at b* alone",
        sympy.diff(noise, b),
        2 * T0 * (b - best) / G,
        {
            "at V": 2 * T0 * (b - V) / G,
            "at E‖s‖z/E‖s‖": 2 * T0 * (b - LAW.moment("‖s‖ z") / LAW.moment("‖s‖")) / G,
        },
    )
    yield Statement("its curvature is positive", sympy.diff(noise, b, 2), 2 * T0 / G)
    gain = formulas.baseline_square(0, CROSS, T0, -V)
    yield Statement(
        "vanilla less the oracle",
        error(VANILLA) - error(ORACLE),
        gain / G,
        {"V² tr F": V**2 * T0 / G},
    )
    yield Statement("its sign is that of V(2b* - V)", gain, T0 * V * (2 * best - V))
    yield Statement(
        "vanilla less grpo",
        error(VANILLA) - error(GRPO),
        (gain - G * formulas.grpo_error(G, 0, pair())) / G,
        {"as the oracle": gain / G},
    )
    binary = Law(binary=["z"])
    p, no_push = binary.moment("z"), {binary.inner("s z", "s z"): 0}
    even = {**no_push, binary.moment("s s z"): V * T0}
    yield Statement(
        "vanilla less grpo is positive if p > 1/G where E‖s‖²a is 0, but for ‖g‖²",
        sympy.expand(error(VANILLA, binary) - error(GRPO, binary)).subs(even),
        T0 * p * (G * p - 1) / (G * (G - 1)),
        {"p > 1/2": T0 * p * (2 * p - 1) / (G * (G - 1))},
        "every G and pass rate",
    )
    yield Statement(
        "the oracle less the best constant",
        error(ORACLE) - noise.subs(b, best),
        -formulas.baseline_square(0, CROSS, T0, best - V) / G,
    )
    # The baseline is linear in the others' rewards, so its first-order part is that of a constant.
    share, level = sympy.symbols("β c", real=True)
    linear = VANILLA - share * distinct(G, "s", "z") / G - level * distinct(G, "s") / G
    mean = share * (G - 1) * V + level
    yield Statement(
        "a baseline linear in the others has the error of its mean, and β²(σ² tr F + ‖g‖²)(G-1)/G more",
        error(linear),
        single(mean - V) / G + share**2 * (G - 1) / G * pair(),
    )


def theorem_7() -> Iterator[Statement]:
    """The group size with the least error at a budget of K outputs; r = G* - 1, so c3 = c1 r²."""
    r, q = sympy.symbols("r q", positive=True)
    noise = formulas.budget_noise(G, c1, c2, c3)
    best = formulas.best_group_size(r**2, sympy.sqrt)
    scope = "every c1, c2, c3 > 0"
    yield Statement(
        "the slope of the noise in G is 0 at G* = 1 + √(c3/c1) alone",
        sympy.diff(noise, G).subs(c3, c1 * r**2),
        c1 * (G - best) * (G + best - 2) / (G - 1) ** 2,
        {
            "√(c3/c1)": c1 * (G - r) * (G + r) / (G - 1) ** 2,
            "c3 halved": c1 * ((G - 1) ** 2 - r**2 / 2) / (G - 1) ** 2,
            "c2 inside the root": c1 * ((G - 1) ** 2 - r**2 - c2 / c1) / (G - 1) ** 2,
        },
        scope,
    )
    yield Statement(
        "its curvature is positive", sympy.diff(noise, G, 2), 2 * c3 / (G - 1) ** 3, {}, scope
    )
    yield Statement(
        "the least noise",
        noise.subs(c3, c1 * r**2).subs(G, best),
        least_noise(c1, c2, c1 * r),
        {"without the 2": c1 + c2 + c1 * r},
        scope,
    )
    own = sympy.Symbol("g²", positive=True)
    square = formulas.adam_square(own, noise, K)
    fall = (c1 - c3 / (G - 1) ** 2) / (2 * K)
    yield Statement(
        "the slope of a parameter's gain with Adam is -w (c1 - c3/(G-1)²)/(2K)",
        sympy.diff(formulas.adam_gain(own, square, sympy.sqrt), G),
        -formulas.adam_weight(own, square, sympy.sqrt) * fall,
        {"w = g²/√v": -formulas.adam_gain(own, square, sympy.sqrt) * fall},
        scope,
    )
    yield from constants()
    # What is left is at least 0 (mse).
    phi, spread, signal = sympy.symbols("E[σ²trF] E‖g(X)‖² ‖g‖²", positive=True)
    least, _, most = formulas.constants_from(0, phi, spread, signal)
    yield Statement(
        "c3 - 2 c1 is E[σ² tr F - ‖g(X)‖²] + 2‖g‖², at least 0: G* is at least 1 + √2",
        most - 2 * least,
        (phi - spread) + 2 * signal,
        scope="every law",
    )
    yield Statement(
        "without replacement c1 becomes c1 N/(N-1), and a constant is gone",
        K
        * formulas.minibatch_error(
            K / G, c1, formulas.grpo_error(G, c2, c3), formulas.left_share(K / G, N)
        ),
        formulas.budget_noise(G, c1 * N / (N - 1), c2, c3) - K * c1 / (N - 1),
        {"c1 as it was": noise - K * c1 / (N - 1)},
        "every N and K",
    )
    slope = sum(c * (G - 1) ** (4 - k) for k, c in enumerate(formulas.costly_slope(q, c2, c3)))
    yield Statement(
        "the slope with a cost q of each prompt",
        sympy.diff((q + G) * (1 + c2 / G + c3 / (G * (G - 1))), G),
        slope / (G**2 * (G - 1) ** 2),
        scope="every q, c2/c1 and c3/c1",
    )


def constants() -> Iterator[Statement]:
    """c1, c2 and c3 of moments, and of inner products of a step's own terms Aᵢ sᵢ."""
    tau, phi, spread, signal = sympy.symbols("τ φ E‖g(X)‖² ‖g‖²", positive=True)
    others, scope = G - 1, "every G and every law"
    yield Statement(
        "c1 G + c2 + c3/(G-1) of moments",
        G
        * formulas.minibatch_error(
            1,
            spread - signal,
            formulas.grpo_error(G, tau - spread, formulas.pair_noise(phi, 1, spread)),
        ),
        formulas.budget_noise(G, *formulas.constants_from(tau, phi, spread, signal)),
        {"c1 without ‖g‖²": formulas.budget_noise(G, spread, tau - spread, phi + spread)},
        scope,
    )
    # Σ ‖sᵢ‖² (zᵢ - mean of the others)²; what is left of E‖ĝ‖² comes from pairs.
    squares = distinct(G, "s s z z") - 2 * distinct(G, "s s z", "z") / others
    squares += (distinct(G, "s s", "z z") + distinct(G, "s s", "z", "z")) / others**2
    alpha = LAW.mean(squares) / G
    yield Statement(
        "α, the mean of ‖Aᵢ sᵢ‖² of a step's own terms",
        alpha,
        ADVANTAGE + VARIANCE * T0 / others,
        {"τ": ADVANTAGE},
        scope,
    )
    beta = SQUARE * (1 + 1 / others**2)
    yield Statement(
        "β, the mean of ⟨Aᵢ sᵢ, Aⱼ sⱼ⟩",
        (LAW.mean(GRPO * GRPO) * G - alpha) / others,
        beta,
        {"‖g(X)‖²": SQUARE},
        scope,
    )
    y = sympy.Symbol("y")

    def as_one(three: tuple[Any, ...]) -> Any:
        return sum(y**k * value for k, value in enumerate(three))

    terms = tau + phi / others, spread * (1 + 1 / others**2)
    yield Statement(
        "c1, c2 and c3 of α, β and γ",
        as_one(formulas.constants_of_pairs(*terms, signal, others, phi / tau)),
        as_one(formulas.constants_from(tau, phi, spread, signal)),
        {"α for τ": as_one(formulas.constants_from(terms[0], phi, spread, signal))},
        scope,
    )


def beyond_3() -> Iterator[Statement]:
    """An output has the weight w, for example 1/|y|, which may depend on everything else."""
    estimate = distinct(G, "s w z") / G - distinct(G, "s w", "z") / (G * (G - 1))
    product, score = LAW.moment("s w z"), LAW.moment("s w")
    yield Statement(
        "mean of grpo with a weight of each output",
        LAW.mean(estimate),
        formulas.length_mean(product, V, score),
        {"the gradient of E w z": product},
        "every G, every law and all weights",
    )
    yield Statement(
        "the same of the oracle",
        LAW.mean(distinct(G, "s w z") / G - V * distinct(G, "s w") / G),
        formulas.length_mean(product, V, score),
        scope="every G, every law and all weights",
    )


def lemma_11() -> Iterator[Statement]:
    """Coefficients of the expansion in 1/G; the expansion itself is not proved."""
    law = Law(binary=["z"])
    value, gradient = law.moment("z"), law.moment("s z")
    advantage = distinct(1, "z") - value
    square, fourth = (law.mean(advantage**k) for k in (2, 4))
    inner = law.inner("s z", "s z")
    yield Statement(
        "‖g‖² (E a⁴ - σ⁴)/(4 σ⁶) of rewards 0 and 1",
        inner * (fourth - square**2) / (4 * square**3),
        formulas.normalised_gap(inner, value),
        {"σ² for 1-2p": inner * square / (4 * square**2)},
        "every pass rate and law of scores",
    )
    # tr Cov(s a/σ - g a²/(2σ³)): its mean is g/(2σ), and E s a³ is a multiple of g.
    score = distinct(1, "s")
    single = law.mean((score * advantage) ** 2) - inner
    cubed = sympy.cancel(law.mean(score * advantage**3) / gradient)
    whole = (single + inner) / square - cubed * inner / square**2 + fourth * inner / (4 * square**3)
    yield Statement(
        "tr Cov(s a/σ - g a²/(2σ³)) of rewards 0 and 1",
        whole - inner / (4 * square),
        formulas.normalised_noise(single, inner, value),
        {"tr Σ/σ²": single / square},
        "every pass rate and law of scores",
    )


def beyond_7() -> Iterator[Statement]:
    """A second step on the same outputs. To first order in the rate it is ĝ + η M̂ ĝ, with M = s sᵀ + ∇s of
    each output for its score, and E M = 0. Along u only ⟨M u, s⟩ of pairs of outputs matters: m = M u.
    """
    law = Law(vectors=("m", "s"), centred=("m", "s"))
    straight = distinct(G, "m z", vectors=("m",)) / G
    crossed = distinct(G, "m", "z", vectors=("m",)) / (G * (G - 1))
    turned = straight - crossed
    value = law.moment("z")
    variance = law.moment("z z") - value**2
    # Centred: E ⟨m, s⟩ a², and ⟨E m a, E s a⟩, which is Q g along u.
    score, product = law.moment("m s"), law.inner("m z", "s z")
    square = law.moment("m s z z") - 2 * value * law.moment("m s z") + value**2 * score
    true = law.mean(turned * GRPO) - product
    formula = formulas.reuse_slope(G, variance, square, score, product)
    yield Statement(
        "slope of the bias of a second step on the same outputs",
        true,
        formula,
        {
            "unbiased": 0,
            "no second-order term": (square - product) / G,
            "Q g missing in it": formula - product / (G * (G - 1)),
            "towards less noise": -formula,
        },
    )
    within = sympy.Symbol("E_X Cov(M̂, ĝ)", real=True)
    scope = "every B, every G and every law"
    for name, population, share in (
        ("", None, 1),
        (" without replacement", N, formulas.left_share(B, N)),
    ):
        prompts = Prompts(within, population, "q")
        curved, climbed = (distinct(B, word, vectors=("q", "g")) / B for word in ("q", "g"))
        slope = formulas.minibatch_error(B, prompts.between, within, share)
        yield Statement(
            f"the same of a minibatch of prompts{name}, Q g by q along u",
            prompts.mean(curved * climbed) - prompts.mean_square,
            slope,
            {
                "no prompt term": within / B,
                "the bias not divided by B": B * slope,
            },
            scope,
        )
