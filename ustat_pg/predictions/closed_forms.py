"""The formulas of the theorems. Each one is a pure function of moments and sizes.

They take numbers, exact fractions, symbols and arrays of any library, and do not convert or check
them. The other modules of predictions check their arguments and call these. A moment of s sᵀ is a
matrix, (d, d), or its trace, or the traces of all prompts, (X,); if it is a trace, g gᵀ means ‖g‖².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


def baseline_square(square: Any, cross: Any, fisher: Any, shift: Any) -> Any:
    """E[s sᵀ (z-b)²] = E[s sᵀ a²] - 2 (b-V) E[s sᵀ a] + (b-V)² F for a baseline b of the prompt, a = z - V.

    The oracle has b = V, vanilla has b = 0, and the best baseline has b = V + E[‖s‖² a]/tr F.

    Arguments:
        square, cross, fisher: E[s sᵀ a²], E[s sᵀ a], F; 0 for the first gives the extra cost of b over V.
        shift: b - V.
    """
    return square - 2 * shift * cross + shift**2 * fisher


def binary_square(value: Any, cross: Any, fisher: Any) -> Any:
    """E[s sᵀ a²] for rewards 0 and 1: (1-2V) E[s sᵀ a] + V (1-V) F."""
    return (1 - 2 * value) * cross + value * (1 - value) * fisher


def seen_rate(value: Any, right: Any, wrong: Any) -> Any:
    """p̃ = c + (a - c) p, the pass rate that a verifier with errors measures.

    Arguments:
        value: p.
        right, wrong: a and c, the shares of right and of wrong answers that are accepted.
    """
    return wrong + (right - wrong) * value


def pair_noise(variance: Any, fisher: Any, gradient: Any) -> Any:
    """σ² F + g gᵀ, the noise from pairs of outputs: the part of order 1/G² in the error of grpo.

    Arguments:
        variance, fisher, gradient: σ², F, g gᵀ.
    """
    return variance * fisher + gradient


def grpo_error(group_size: Any, single: Any, pair: Any) -> Any:
    """Σ/G + (σ² F + g gᵀ)/(G (G-1)) at one prompt (Theorem 2, mse).

    Arguments:
        group_size: G.
        single: Σ = E[s sᵀ a²] - g gᵀ.
        pair: :func:`pair_noise`.
    """
    return single / group_size + pair / (group_size * (group_size - 1))


def memory_noise(
    group_size: Any, memory: Any, other: Any, earlier: Any, pair: Any, past: Any
) -> Any:
    """(G-1) u² (σ² F + g gᵀ) + n v² σ'² F, G times the part of the error from the baseline
    u Σ_{j≠i} zⱼ + v Σₘ zₘ of n earlier rewards (reward_memory).

    The mean of all N = G-1+n rewards has u = v = 1/N: under the same law it gives σ² F/N + (G-1) g gᵀ/N².

    Arguments:
        group_size, memory: G and n.
        other, earlier: u and v.
        pair: :func:`pair_noise`.
        past: σ'² F, with the variance σ'² of an earlier reward.
    """
    return (group_size - 1) * other**2 * pair + memory * earlier**2 * past


def memory_budget_noise(
    group_size: Any, memory: Any, c1: Any, c2: Any, c3: Any, spread: Any
) -> Any:
    """c1 G + c2 + c3/N - n E‖g(X)‖²/N², N = G-1+n: K times the error at K = BG outputs if the baseline is the
    mean of the G-1 others' rewards and of n earlier ones (reward_memory).

    Without the last term, it is least at G = 1 + √(c3/c1) - n: :func:`best_group_size` less n.

    Arguments:
        group_size, memory: G and n.
        c1, c2, c3: the constants of :func:`budget_noise`.
        spread: E‖g(X)‖².
    """
    number = group_size - 1 + memory
    return c1 * group_size + c2 + c3 / number - memory * spread / number**2


def memory_slope(memory: Any, c1: Any, c3: Any, spread: Any) -> tuple[Any, ...]:
    """The derivative of :func:`memory_budget_noise` in G times N³: the factors of N³, N², N and 1."""
    return c1, 0, -c3, 2 * memory * spread


def whole_group_share(group_size: Any) -> Any:
    """(G-1)/G, the factor on the mean if the baseline is the mean of the whole group."""
    return (group_size - 1) / group_size


def left_share(batch_size: Any, population: Any) -> Any:
    """(N-B)/(N-1), the share of the variance between N prompts that is left in B without replacement."""
    return (population - batch_size) / (population - 1)


def minibatch_error(batch_size: Any, between: Any, within: Any, share: Any = 1) -> Any:
    """(f Cov_X g(X) + E Cov(ĝ | X))/B (Proposition 3, minibatch).

    Arguments:
        batch_size: B.
        between, within: the two covariances.
        share: f: 1 for i.i.d. prompts, 0 for a fixed set, :func:`left_share` without replacement.
    """
    return (share * between + within) / batch_size


def constants_from(square: Any, variance_trace: Any, spread: Any, signal: Any) -> tuple[Any, ...]:
    """c1, c2 and c3 from E τ, E[σ² tr F], E‖g(X)‖² and ‖g‖² (Theorem 7, group_size)."""
    return spread - signal, square - spread, variance_trace + spread


def constants_of_pairs(
    alpha: Any, beta: Any, gamma: Any, others: Any, phi_over_tau: Any
) -> tuple[Any, ...]:
    """The same from α, β, γ (:func:`ustat_pg.predictions.paired_constants`) for G - 1 other outputs."""
    square = alpha / (1 + phi_over_tau / others)
    return constants_from(square, phi_over_tau * square, beta / (1 + 1 / others**2), gamma)


def budget_noise(group_size: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """c1 G + c2 + c3/(G-1): K times the error of grpo at K = BG outputs (Theorem 7, group_size).

    It is least at (G-1)² = c3/c1.
    """
    return c1 * group_size + c2 + c3 / (group_size - 1)


def best_group_size(ratio: Any, root: Callable[[Any], Any] = math.sqrt) -> Any:
    """G* = 1 + √(c3/c1), where :func:`budget_noise` is least.

    Arguments:
        ratio: c3/c1.
        root: a square root function for the ratio's type.
    """
    return 1 + root(ratio)


def adam_square(gradient_sq: Any, noise: Any, budget: Any) -> Any:
    """E ĝⱼ² = gⱼ² + (c1ⱼ G + c2ⱼ + c3ⱼ/(G-1))/K of each parameter: what Adam's second moments estimate.

    Arguments:
        gradient_sq: gⱼ².
        noise: :func:`budget_noise` of the parameter's own constants.
        budget: K.
    """
    return gradient_sq + noise / budget


def adam_gain(gradient_sq: Any, square: Any, root: Callable[[Any], Any] = math.sqrt) -> Any:
    """gⱼ²/√vⱼ, the part of a parameter in the gain of a step of Adam, of first order in its rate.

    Arguments:
        gradient_sq: gⱼ².
        square: vⱼ, :func:`adam_square`.
        root: a square root function for the square's type.
    """
    return gradient_sq / root(square)


def adam_weight(gradient_sq: Any, square: Any, root: Callable[[Any], Any] = math.sqrt) -> Any:
    """gⱼ² vⱼ^(-3/2), the weight of a parameter's c1ⱼ and c3ⱼ in Adam's best group size.

    It is -2 times the derivative of :func:`adam_gain` in vⱼ.
    """
    return adam_gain(gradient_sq, square, root) / square


def costly_slope(fixed: Any, c2: Any, c3: Any) -> tuple[Any, ...]:
    """The derivative in G of (q + G)(1 + c2/G + c3/(G(G-1))), times G² (G-1)²: the factors of (G-1)⁴ to 1.

    Arguments:
        fixed: q, the cost of a prompt in outputs.
        c2, c3: the constants divided by c1.
    """
    return 1, 2, 1 - fixed * c2 - c3, -2 * c3 * (1 + fixed), -c3 * (1 + fixed)


Mean = Callable[[int, int, Any], Any]
"""A function of the number of outputs set aside, of their successes, and of f(0), f(1), ...; it returns the
mean of f over the number of successes among the others."""


class Shares(NamedTuple):
    """The factors on the means in E⟨ĝ, ĝ'⟩ of two estimates on the same draws (count_advantages).

    Rewards are 0 and 1; an output adds its vector, u or u', times an advantage that depends on its own reward
    and on the number of successes among the others.

    Arguments:
        won, lost: factors of E[⟨u, u'⟩ z] and of E[⟨u, u'⟩ (1-z)].
        both, none: factors of ⟨E u z, E u' z⟩ and of ⟨E u (1-z), E u' (1-z)⟩.
        mixed, turned: factors of ⟨E u z, E u' (1-z)⟩ and of ⟨E u (1-z), E u' z⟩.
    """

    won: Any
    lost: Any
    both: Any
    none: Any
    mixed: Any
    turned: Any


def lone_shares(table: Any, mean: Mean, other: Any = None) -> tuple[Any, Any]:
    """The first two of :func:`table_shares`."""
    a, b, size = table, other or table, len(table.successes) - 1
    won, lost = a.successes * b.successes, a.failures * b.failures
    return mean(1, 1, won[1:]) / size, mean(1, 0, lost[:-1]) / size


def table_shares(table: Any, mean: Mean, other: Any = None) -> Shares:
    """The shares of tables; m and l count the successes among the G-1 and G-2 other outputs:

        (1/G) E a₁(m+1) a₁'(m+1),       (1/G) E a₀(m) a₀'(m),
        (1-1/G) E a₁(l+2) a₁'(l+2),     (1-1/G) E a₀(l) a₀'(l),
        (1-1/G) E a₁(l+1) a₀'(l+1),     (1-1/G) E a₀(l+1) a₁'(l+1).

    Arguments:
        table: with ``successes``, a₁(0), ..., a₁(G), and ``failures``, a₀(0), ..., a₀(G).
        mean: the function that takes E over m and over l.
        other: the table of ĝ'; by default the same table.
    """
    lone, size = lone_shares(table, mean, other), len(table.successes) - 1
    if size == 1:
        return Shares(*lone, 0, 0, 0, 0)
    a, b = table, other or table

    def pairs(won: int, values: Any) -> Any:
        return mean(2, won, values) * (size - 1) / size

    both = pairs(2, (a.successes * b.successes)[2:])
    none = pairs(0, (a.failures * b.failures)[:-2])
    mixed = pairs(1, (a.successes * b.failures)[1:-1])
    turned = mixed if a is b else pairs(1, (a.failures * b.successes)[1:-1])
    return Shares(*lone, both, none, mixed, turned)


def inner_product(shares: Iterable[Any], means: Iterable[Any]) -> Any:
    """E⟨ĝ, ĝ'⟩ from its shares and the six means that they multiply."""
    return sum(share * mean for share, mean in zip(shares, means, strict=True))


def centred_moment(shares: Shares, reward: Any, fisher: Any, gradient: Any) -> Any:
    """E ĝ ĝᵀ, or E‖ĝ‖², for scores. Their mean is 0, so E s (1-z) = -g.

    Arguments:
        shares: the shares of the table with itself.
        reward, fisher, gradient: E[s sᵀ z], F, g gᵀ.
    """
    won, lost, both, none, mixed, turned = shares
    pairs = both + none - mixed - turned
    return inner_product((won, lost, pairs), (reward, fisher - reward, gradient))


def nested_moment(table: Any, other: Any, mean: Any, squares: Any, products: Any) -> Any:
    """E⟨ĝ, ĝ'⟩ of tables for two rewards on the same draws, y ≥ y', both 0 or 1 (count_advantages).

    An output is of class 0 if neither is 1, of class 1 if only y is, of class 2 if both are. With n and n'
    the numbers of other outputs with y = 1 and with y' = 1, and a_c the advantage of an output of class c,

        (1/G) Σ_c E[‖s‖²; c] E[a_c(n) a'_c(n')] + (1-1/G) Σ_{c,e} ⟨E[s; c], E[s; e]⟩ E[a_c(n) a'_e(n')],

    where n and n' in the second sum include the other of the two outputs.

    Arguments:
        table, other: as for :func:`table_shares`.
        mean: function of the number of outputs that are not counted, 1 or 2, of f(0), f(1), ... and of f'(0),
            f'(1), ..., to E f(n) f'(n').
        squares: E[‖s‖²; c] for the three classes.
        products: ⟨E[s; c], E[s; e]⟩ for every two classes.
    """
    size = len(table.successes) - 1
    classes = ((0, 0), (1, 0), (1, 1))

    def of(each: Any, own: int, beside: int, aside: int) -> Any:
        won = own + beside
        return (each.successes if own else each.failures)[won : won + size - aside + 1]

    total = sum(
        square * mean(1, of(table, y, 0, 1), of(other, less, 0, 1))
        for square, (y, less) in zip(squares, classes, strict=True)
    )
    if size > 1:
        total += (size - 1) * sum(
            products[c][e] * mean(2, of(table, y, seen, 2), of(other, less, beside, 2))
            for c, (y, beside) in enumerate(classes)
            for e, (seen, less) in enumerate(classes)
        )
    return total / size


def best_of_noise(k: Any, square: Any, cross: Any, spread: Any, gradient: Any) -> Any:
    """The limit of G tr Cov ĝ for the best of k, tr Cov(k s (ψ - c) + k (k-1) γ) (count_advantages).

    ψ(z) is the mean greatest of a reward z and k-1 others, γ(z) = E[s₁ max(z, z₁, k-2 others)].

    Arguments:
        k: the number of attempts.
        square, cross, spread: E[‖s‖² (ψ-c)²], E[⟨s, γ⟩ (ψ-c)], E‖γ‖², where c is the baseline.
        gradient: ‖∇ E max‖².
    """
    return k**2 * (square + 2 * (k - 1) * cross + (k - 1) ** 2 * spread - gradient)


def best_of_baseline(k: Any, reward: Any, cross: Any, fisher: Any) -> Any:
    """c* of least :func:`best_of_noise`, (E[‖s‖² ψ] + (k-1) E⟨s, γ⟩)/E‖s‖² (count_advantages)."""
    return (reward + (k - 1) * cross) / fisher


def table_weight(table: Any, mean: Mean) -> Any:
    """w(p) = E δ(m), δ(m) = a₁(m+1) - a₀(m), the factor on g in a table's mean (count_advantages).

    Arguments:
        table, mean: as for :func:`table_shares`.
    """
    return mean(1, 0, table.successes[1:] - table.failures[:-1])


def first_order(table: Any, mean: Mean, value: Any, reward: Any, fisher: Any, gradient: Any) -> Any:
    """E‖Σᵢ E[ĝ | output i] - E ĝ‖² of a table, the first-order part of Hoeffding's decomposition.

    Arguments:
        table, mean: as for :func:`table_shares`.
        value, reward, fisher, gradient: p, E‖s‖² z, E‖s‖², ‖g‖².
    """
    size = len(table.successes) - 1
    won, lost = mean(1, 1, table.successes[1:]), mean(1, 0, table.failures[:-1])
    weight, slope = table_weight(table, mean), 0
    if size > 1:
        delta = table.successes[1:] - table.failures[:-1]
        slope = (size - 1) * mean(2, 1, delta[1:] - delta[:-1])
    crossed = 2 * slope * ((1 - value) * won + value * lost)
    of_gradient = crossed + value * (1 - value) * slope**2 - weight**2
    single = won**2 * reward + lost**2 * (fisher - reward)
    return (single + of_gradient * gradient) / size


def normal_equations(gains: Any, norms: Any, rewards: Any, pairs: Any) -> tuple[Any, Any]:
    """The diagonal and right side of M a₀ = r, which the best table with gains δ solves (best_baseline).

    Off its diagonal M has -pairs.

    Arguments:
        gains: δ(0), ..., δ(G-1).
        norms, rewards: E[P(m) E‖s‖²] and E[P(m) E‖s‖² z], where P is the law of the successes among G-1.
        pairs: (G-1) E[P'(l) ‖g‖²], where P' is the law of the successes among G-2.
    """
    diagonal, right = +norms, -gains * rewards
    diagonal[:-1] += pairs
    diagonal[1:] += pairs
    right[1:] -= pairs * (gains[1:] - gains[:-1])
    return diagonal, right


def best_amount(pair: Any, cross: Any, square: Any) -> Any:
    """λ*, the amount of shrinkage, or the weight of a memory, with the least error (best_baseline,
    reward_memory).

    Arguments:
        pair: E[σ² tr F + ‖g‖²]/(G-1).
        cross, square: E[δ E‖s‖² a] and E[δ² tr F], δ = μ - V; for a memory δ is the drift of its mean, and
            E[σ'² tr F]/n is added to the second.
    """
    return (pair + cross) / (pair + square)


def compared_share(reach: Any, group_size: Any) -> Any:
    """cₜ = 1 - (1-qₜ)^(G-1), the chance that another episode reaches the turn (turns).

    Arguments:
        reach: qₜ, the probability of reaching the turn.
        group_size: G.
    """
    return 1 - (1 - reach) ** (group_size - 1)


def kept_share(reach: Any, group_size: Any) -> Any:
    """wₜ = 1 - (1 - (1-qₜ)^G)/(G qₜ), the weight of a turn if the baseline includes the own episode (turns).

    Arguments:
        reach, group_size: as for :func:`compared_share`.
    """
    return 1 - (1 - (1 - reach) ** group_size) / (group_size * reach)


def turn_push(group_size: Any, square: Any, twice: Any = 0) -> Any:
    """(G-1) ‖gₜ‖² (1 + E 1/(k+1)²), what the others add to one episode in G E‖ĝₜ‖² (turns).

    Arguments:
        group_size: G.
        square: ‖gₜ‖².
        twice: E 1/(k+1)² of the k others of two episodes who are there, 0 without a baseline.
    """
    return (group_size - 1) * square * (1 + twice)


def turn_square(
    group_size: Any,
    moments: tuple[Any, Any, Any],
    law: tuple[Any, Any],
    alone: Any,
    over: Any,
    push: Any,
) -> Any:
    """E‖ĝₜ‖² with the mean of the others that reach the turn as baseline, or 0 if none does (turns).

    Arguments:
        group_size: G.
        moments: E‖sₜ‖², E‖sₜ‖² (Rₜ-V) and E‖sₜ‖² (Rₜ-V)².
        law: V and σ², mean and variance of a return, given that the turn is reached.
        alone: the probability that no other episode reaches the turn.
        over: E 1/k over the k others that reach it, if any does.
        push: :func:`turn_push`, Σ E⟨sₜ Aₜ, sₜ' Aₜ'⟩ over the G-1 others.
    """
    (norm, first, second), (value, variance) = moments, law
    own = second + 2 * value * alone * first + norm * (variance * over + value**2 * alone)
    return (own + push) / group_size


def stop_weight(chances: Callable[[int, int], Any], won: Any, lost: Any) -> Any:
    """w(p) = Σₜ P(t) (a/p - b/q) of an estimate a s̄₁ + b s̄₀ at each stop t of a plan (adaptive_groups).

    Arguments:
        chances: given i and j, P(t)/(pⁱ qʲ) of all stops.
        won, lost: a and b at all stops.
    """
    return chances(1, 0) @ won - chances(0, 1) @ lost


def stop_shares(
    chances: Callable[[int, int], Any], won: Any, lost: Any, successes: Any, failures: Any
) -> Shares:
    """The shares of E‖ĝ‖² for the same estimate.

    In the square of a mean of u vectors, 1/u comes from single outputs and the rest from pairs.

    Arguments:
        chances, won, lost: as for :func:`stop_weight`.
        successes, failures: 1/u at all stops, where u is the number of outputs in s̄₁, or in s̄₀.
    """
    mixed = chances(1, 1) @ (won * lost)
    return Shares(
        won=chances(1, 0) @ (won**2 * successes),
        lost=chances(0, 1) @ (lost**2 * failures),
        both=chances(2, 0) @ (won**2 * (1 - successes)),
        none=chances(0, 2) @ (lost**2 * (1 - failures)),
        mixed=mixed,
        turned=mixed,
    )


def drawn_square(law: Any, weights: Any, squares: Any) -> Any:
    """E‖ĝ‖² = Σₓ q v² m of a prompt drawn by q whose estimate is multiplied by v (prompt_sampling).

    If v = ρ/q, the estimate is unbiased, and this is Σ ρ²/q m.

    Arguments:
        law, weights: q(x) and v(x).
        squares: m(x) = E‖ĝₓ‖², ‖g(x)‖² plus :func:`grpo_error`.
    """
    return sum(law * weights**2 * squares)


def drawn_cost(outputs: Any, square: Any, signal: Any) -> Any:
    """Outputs times variance of one drawn prompt; the variance with K outputs per step is 1/K of it.

    Arguments:
        outputs: Σ q n, the mean size of a group.
        square, signal: :func:`drawn_square` and ‖g‖².
    """
    return outputs * (square - signal)


def drawing_weight(
    probs: Any, square: Any, outputs: Any, extra: Any = 0, root: Callable[[Any], Any] = math.sqrt
) -> Any:
    """ρ √(m/(n + κ)), to which the best law is proportional (prompt_sampling).

    Arguments:
        probs, square, outputs: ρ(x), m(x) and n(x).
        extra: κ, :func:`signal_outputs` at the best law; it has no effect if all n(x) are equal.
        root: a square root function for the type.
    """
    return probs * root(square / (outputs + extra))


def signal_outputs(outputs: Any, square: Any, signal: Any) -> Any:
    """κ = N ‖g‖²/(E‖ĝ‖² - ‖g‖²), with N = Σ q n the mean size of a group: at the least cost each n(x) has
    the least (n + κ) m(x) (prompt_sampling).

    Arguments:
        outputs, square, signal: as for :func:`drawn_cost`.
    """
    return outputs * signal / (square - signal)


def expected_spread(successes: Any, failures: Any, prior: Any) -> Any:
    """E[p (1-p)] after k = s + f rollouts, with p ~ Beta(a, b) before:

        (s+a)(f+b)/((k+a+b)(k+a+b+1))

    Arguments:
        successes, failures: s and f.
        prior: a and b.
    """
    a, b = prior
    total = successes + failures + a + b
    return (successes + a) * (failures + b) / (total * (total + 1))


def chosen_share(value: Any, rollouts: int, least: int, most: int) -> Any:
    """P(least ≤ s ≤ most) for the successes s of k rollouts, the share of screenings that a prompt passes.

    Arguments:
        value: p.
        rollouts: k.
        least, most: the ends of the range of s.
    """
    return sum(
        math.comb(rollouts, s) * value**s * (1 - value) ** (rollouts - s)
        for s in range(least, most + 1)
    )


def reuse_slope(group_size: Any, variance: Any, square: Any, score: Any, product: Any) -> Any:
    """(E[M s a²] - Q g)/G + (σ² E[M s] + Q g)/(G (G-1)), the slope in the learning rate of the bias of a
    second step on the same outputs, at one prompt (reuse).

    It is :func:`grpo_error` with M = s sᵀ + ∇s for one of the scores: Cov(M̂, ĝ).

    Arguments:
        group_size: G.
        variance: σ².
        square, score, product: E[M s a²], E[M s], and Q g with Q = E[M a].
    """
    return grpo_error(group_size, square - product, pair_noise(variance, score, product))


def length_mean(product: Any, value: Any, score: Any) -> Any:
    """E[w s z] - V E[w s], the mean if an output has the weight w, for example 1/|y| (length_weights).

    Arguments:
        product, value, score: E[w s z], V and E[w s].
    """
    return product - value * score


def normalised_gap(gradient: Any, value: Any) -> Any:
    """lim G E‖ĝ_std - ĝ_grpo/σ‖² = ‖g‖² (1-2p)²/(4 σ⁴) for rewards 0 and 1 (Lemma 11, normalised).

    Arguments:
        gradient, value: ‖g‖² and p.
    """
    return gradient * (1 - 2 * value) ** 2 / (4 * (value * (1 - value)) ** 2)


def normalised_noise(single: Any, gradient: Any, value: Any) -> Any:
    """lim G E‖ĝ_std - g/σ‖² = tr Σ/σ² - (3/4) ‖g‖² (1-2p)²/σ⁴ for rewards 0 and 1 (Lemma 11, normalised).

    Arguments:
        single: tr Σ.
        gradient, value: ‖g‖² and p.
    """
    return single / (value * (1 - value)) - 3 * normalised_gap(gradient, value)


def climbed_objective(table: Any, more: Any) -> Any:
    """Φ(p) = (1/G) Σ_m δ(m) P(more than m successes), with derivative :func:`table_weight` (arcsine).

    Arguments:
        table: as for :func:`table_shares`.
        more: the probabilities of more than 0, ..., G-1 successes in a group.
    """
    size = len(table.successes) - 1
    return more @ (table.successes[1:] - table.failures[:-1]) / size


def arcsine(pass_rate: Any, root: Callable[[Any], Any], inverse: Callable[[Any], Any]) -> Any:
    """2 arcsin √p, the objective of division by the deviation as G → ∞ (Proposition 13, arcsine).

    Arguments:
        pass_rate: p.
        root, inverse: the square root and the inverse sine functions for the type of p.
    """
    return 2 * inverse(root(pass_rate))
