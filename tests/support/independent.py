"""A second mind's brute force for the gradient theorems, in exact rational arithmetic.

Nothing here is imported from the library, and no closed form is used in the first three parts:
they enumerate every minibatch and read mean, covariance and MSE off the enumerated law.

1. Problems: finite contexts, arms with a score vector each, a finite reward law per arm.
2. Brute force: the law of the estimator, from its definition.
3. Moments: per-context expectations, summed outcome by outcome.
4. Closed forms: what the theory says, as Fractions, to be compared with 2.
5. Rivals: wrong formulas, which must differ from 2.
6. U-statistic: Lemma 1 and the Hoeffding decomposition of one group.

Every number is a `fractions.Fraction`, so the comparisons are `==`, with no tolerance.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import permutations, product
from math import comb, prod

Vector = tuple[Fraction, ...]
Matrix = tuple[Vector, ...]
Law = dict[Vector, Fraction]  # value of a random vector -> its probability

ZERO = Fraction(0)
ONE = Fraction(1)


def dot(u: Vector, v: Vector) -> Fraction:
    """The inner product."""
    return sum((a * b for a, b in zip(u, v, strict=True) if a and b), ZERO)


def add(u: Vector, v: Vector) -> Vector:
    """The sum of two vectors."""
    return tuple(a + b for a, b in zip(u, v, strict=True))


def scale(c: Fraction, v: Vector) -> Vector:
    """A multiple of a vector."""
    return tuple(c * b for b in v)


def outer(u: Vector, v: Vector) -> Matrix:
    """The matrix u v^T."""
    return tuple(tuple(a * b for b in v) for a in u)


def combine(*terms: tuple[Fraction, Matrix]) -> Matrix:
    """The sum of coefficient * matrix."""
    rows, columns = len(terms[0][1]), len(terms[0][1][0])
    return tuple(
        tuple(sum((c * m[i][j] for c, m in terms if c and m[i][j]), ZERO) for j in range(columns))
        for i in range(rows)
    )


def trace(m: Matrix) -> Fraction:
    """The sum of the diagonal."""
    return sum((m[i][i] for i in range(len(m))), ZERO)


# --------------------------------------------------------------------------------------------
# 1. Problems
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One possible rollout in a context: an arm's score with one value of its reward."""

    prob: Fraction
    score: Vector
    reward: Fraction


@dataclass(frozen=True, eq=False)
class Problem:
    """Finite contexts x arms x rewards: `scores[x][k]`, `rewards[x][k] = ((value, prob), ...)`."""

    name: str
    context_probs: Vector
    arm_probs: tuple[Vector, ...]
    scores: tuple[tuple[Vector, ...], ...]
    rewards: tuple[tuple[tuple[tuple[Fraction, Fraction], ...], ...], ...]

    def __post_init__(self) -> None:
        assert sum(self.context_probs) == 1
        for x in self.contexts:
            assert sum(self.arm_probs[x]) == 1
            assert all(sum(p for _, p in law) == 1 for law in self.rewards[x])
            for j in range(self.dimension):  # E[s | x] = 0
                columns = zip(self.arm_probs[x], self.scores[x], strict=True)
                assert sum(p * s[j] for p, s in columns) == 0

    @property
    def contexts(self) -> range:
        return range(len(self.context_probs))

    @property
    def dimension(self) -> int:
        return len(self.scores[0][0])

    def outcomes(self, x: int) -> list[Outcome]:
        """Every (arm, reward) of context x that has a positive probability."""
        return [
            Outcome(p * q, s, z)
            for p, s, law in zip(self.arm_probs[x], self.scores[x], self.rewards[x], strict=True)
            for z, q in law
            if p * q > 0
        ]

    def reward_range(self) -> Fraction:
        """R = z_hi - z_lo over all contexts."""
        values = [o.reward for x in self.contexts for o in self.outcomes(x)]
        return max(values) - min(values)


def fractions(text: str) -> Vector:
    """Read "4/5 .1 .1" as Fractions."""
    return tuple(Fraction(word) for word in text.split())


def tabular_scores(arm_probs: tuple[Vector, ...]) -> tuple[tuple[Vector, ...], ...]:
    """Scores e_k - pi(x) in the block of context x, zero in the others (context-major).

    They are the gradient of log softmax in the logits, and rational: no exponential is needed.
    """
    before = [sum(len(pi) for pi in arm_probs[:x]) for x in range(len(arm_probs) + 1)]
    total = before[-1]

    def score(x: int, k: int) -> Vector:
        block = tuple((ONE if j == k else ZERO) - p for j, p in enumerate(arm_probs[x]))
        return (ZERO,) * before[x] + block + (ZERO,) * (total - before[x + 1])

    return tuple(
        tuple(score(x, k) for k in range(len(arm_probs[x]))) for x in range(len(arm_probs))
    )


def tabular(name: str, context_probs: str, arm_probs: list[str], rewards: list[str]) -> Problem:
    """A tabular softmax bandit. A reward is a number, or "value:prob,value:prob"."""

    def law(word: str) -> tuple[tuple[Fraction, Fraction], ...]:
        if ":" not in word:
            return ((Fraction(word), ONE),)
        pairs = [pair.split(":") for pair in word.split(",")]
        return tuple((Fraction(z), Fraction(p)) for z, p in pairs)

    pi = tuple(fractions(text) for text in arm_probs)
    laws = tuple(tuple(law(word) for word in text.split()) for text in rewards)
    return Problem(name, fractions(context_probs), pi, tabular_scores(pi), laws)


def one_rewarded(name: str, arm_probs: str, arm: int) -> Problem:
    """One context; only `arm` is rewarded, by 1."""
    arms = len(arm_probs.split())
    return tabular(
        name, "1", [arm_probs], [" ".join("1" if k == arm else "0" for k in range(arms))]
    )


def uniform_arms(arms: int) -> Problem:
    """One context, uniform arms, the first rewarded."""
    return one_rewarded(f"uniform {arms}", f"1/{arms} " * arms, 0)


#: V = .8 and b* = .128: Assumption 2 fails.
SKEWED = one_rewarded("skewed", ".8 .1 .05 .05", 0)
#: Unequal norms, and Assumption 2 holds all the same: V = b* = .3.
BALANCED = one_rewarded("balanced", ".4 .3 .2 .1", 1)
#: Equal norms: Assumption 2 for every reward.
UNIFORM = uniform_arms(4)
#: The smallest problem, where the explicit bound is attained up to its factor one half.
TWO_ARMS = uniform_arms(2)
#: Random rewards of both signs, contexts of unequal probability, V of both signs.
TWO_CONTEXTS = tabular(
    "two contexts",
    "1/3 2/3",
    ["1/4 3/4", "3/5 2/5"],
    ["1:1/2,-1:1/2 2:1/5,0:4/5", "-2:1/2,1/2:1/2 -1/3"],
)
THREE_CONTEXTS = tabular(
    "three contexts",
    "1/2 1/3 1/6",
    ["1/2 1/4 1/4", "1/6 1/3 1/2", "1/5 1/5 3/5"],
    ["1 0 -1:1/3,1:2/3", "2 -1:1/2,1/2:1/2 0", "-1 -3:1/4,0:3/4 1/2"],
)
#: Equally probable contexts, for the fixed and the without-replacement designs.
UNIFORM_CONTEXTS = tabular(
    "uniform contexts",
    "1/3 1/3 1/3",
    ["1/2 1/2", "1/4 3/4", "9/10 1/10"],
    ["1:2/3,0:1/3 0", "0 1", "-1 2:1/2,1:1/2"],
)
#: All rewards equal: no gradient and no reward variance.
DEGENERATE = tabular("degenerate", "1/2 1/2", ["1/3 2/3", "1/2 1/2"], ["3/4 3/4", "3/4 3/4"])
#: Not tabular: features (-1, 0, 1) around their mean 0, so that one arm has score zero (0/0).
ZERO_SCORE = Problem(
    "zero score",
    (ONE,),
    (fractions("1/4 1/2 1/4"),),
    ((fractions("-1"), fractions("0"), fractions("1")),),
    ((((ZERO, ONE),), ((ONE, ONE),), ((ZERO, Fraction(1, 4)), (Fraction(2), Fraction(3, 4)))),),
)

PROBLEMS = {
    problem.name: problem
    for problem in (
        SKEWED,
        BALANCED,
        UNIFORM,
        TWO_ARMS,
        TWO_CONTEXTS,
        THREE_CONTEXTS,
        UNIFORM_CONTEXTS,
        DEGENERATE,
        ZERO_SCORE,
    )
}


# --------------------------------------------------------------------------------------------
# 2. Brute force: the law of the estimator
# --------------------------------------------------------------------------------------------

Group = tuple[Outcome, ...]
Baseline = Callable[[Group, int], Fraction]  # the group and the index i it is used for

BASELINES = (
    "vanilla",
    "grpo",
    "group-mean",
    "oracle",
    "constant",
    "minimum-variance",
    "norm-weighted",
)


def expect(outcomes: list[Outcome], f: Callable[[Outcome], Fraction]) -> Fraction:
    """E f over one rollout."""
    return sum((o.prob * f(o) for o in outcomes), ZERO)


def square_norm(o: Outcome) -> Fraction:
    """||s||^2."""
    return dot(o.score, o.score)


def baseline_function(outcomes: list[Outcome], name: str, constant: Fraction) -> Baseline:
    """What is subtracted from reward i of a group, in a context with these outcomes."""
    value = expect(outcomes, lambda o: o.reward)
    norm = expect(outcomes, square_norm)
    weighted = expect(outcomes, lambda o: square_norm(o) * o.reward)
    best = weighted / norm

    def others(group: Group, i: int) -> list[Outcome]:
        return [o for j, o in enumerate(group) if j != i]

    def leave_one_out(group: Group, i: int) -> Fraction:
        return sum((o.reward for o in others(group, i)), ZERO) / (len(group) - 1)

    def norm_weighted(group: Group, i: int) -> Fraction:
        weights = [square_norm(o) for o in others(group, i)]
        if not any(weights):
            return ZERO
        rewards = [o.reward for o in others(group, i)]
        return sum((w * z for w, z in zip(weights, rewards, strict=True)), ZERO) / sum(weights)

    return {
        "vanilla": lambda group, i: ZERO,
        "grpo": leave_one_out,
        "group-mean": lambda group, i: sum((o.reward for o in group), ZERO) / len(group),
        "oracle": lambda group, i: value,
        "constant": lambda group, i: constant,
        "minimum-variance": lambda group, i: best,
        "norm-weighted": norm_weighted,
    }[name]


def group_gradient(group: Group, baseline: Baseline) -> Vector:
    """(1/G) sum_i s_i (z_i - baseline_i), as in Algorithm 1."""
    total = (ZERO,) * len(group[0].score)
    for i, o in enumerate(group):
        total = add(total, scale(o.reward - baseline(group, i), o.score))
    return scale(Fraction(1, len(group)), total)


@cache
def group_law(
    problem: Problem, x: int, name: str, group_size: int, constant: Fraction = ZERO
) -> Law:
    """The law of one group's gradient at context x: every tuple of outcomes, one by one."""
    outcomes = problem.outcomes(x)
    baseline = baseline_function(outcomes, name, constant)
    law: Law = {}
    for group in product(outcomes, repeat=group_size):
        value = group_gradient(group, baseline)
        law[value] = law.get(value, ZERO) + prod(o.prob for o in group)
    return law


def counts_of(total: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as an ordered sum of `kinds` counts."""
    if kinds == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in counts_of(total - first, kinds - 1):
            yield (first, *rest)


def multinomial(counts: tuple[int, ...]) -> int:
    """The number of tuples with these counts."""
    return prod(comb(sum(counts[: k + 1]), n) for k, n in enumerate(counts))


@cache
def group_law_by_counts(
    problem: Problem, x: int, name: str, group_size: int, constant: Fraction = ZERO
) -> Law:
    """The same law as `group_law`, for large groups: a group's gradient ignores the order.

    Equal outcomes of a group have equal baselines, so one of each kind is evaluated.
    """
    outcomes = problem.outcomes(x)
    baseline = baseline_function(outcomes, name, constant)
    law: Law = {}
    for counts in counts_of(group_size, len(outcomes)):
        group = tuple(o for o, n in zip(outcomes, counts, strict=True) for _ in range(n))
        total = (ZERO,) * problem.dimension
        first = 0  # index in the group of the first outcome of this kind
        for o, n in zip(outcomes, counts, strict=True):
            if n:
                total = add(total, scale(n * (o.reward - baseline(group, first)), o.score))
            first += n
        value = scale(Fraction(1, group_size), total)
        prob = multinomial(counts) * prod(o.prob**n for o, n in zip(outcomes, counts, strict=True))
        law[value] = law.get(value, ZERO) + prob
    return law


def context_draws(
    problem: Problem, batch_size: int, design: str
) -> list[tuple[Fraction, tuple[int, ...]]]:
    """Every (probability, contexts of the minibatch) of a sampling design."""
    rho, contexts = problem.context_probs, problem.contexts
    if design == "iid":
        draws = product(contexts, repeat=batch_size)
        return [(prod(rho[x] for x in draw), draw) for draw in draws]
    assert len(set(rho)) == 1, "this design needs equally probable contexts"
    if design == "fixed":
        assert batch_size == len(contexts), "every context once"
        return [(ONE, tuple(contexts))]
    if design == "without-replacement":
        ordered = list(permutations(contexts, batch_size))
        return [(Fraction(1, len(ordered)), draw) for draw in ordered]
    raise ValueError(design)


def minibatch_law(
    problem: Problem,
    name: str,
    group_size: int,
    batch_size: int,
    design: str,
    constant: Fraction = ZERO,
    law_of_group: Callable[..., Law] = group_law,
) -> Law:
    """The law of (1/B) sum_b of the groups' gradients: every draw, every tuple of groups."""
    law: Law = {}
    for prob, draw in context_draws(problem, batch_size, design):
        groups = [law_of_group(problem, x, name, group_size, constant) for x in draw]
        for values in product(*(group.items() for group in groups)):
            total = (ZERO,) * problem.dimension
            p = prob
            for value, q in values:
                total = add(total, value)
                p *= q
            mean = scale(Fraction(1, batch_size), total)
            law[mean] = law.get(mean, ZERO) + p
    return law


def mean_of(law: Law) -> Vector:
    """The mean vector of a law."""
    total = (ZERO,) * len(next(iter(law)))
    for value, p in law.items():
        total = add(total, scale(p, value))
    return total


def covariance_of(law: Law) -> Matrix:
    """E (v - mean)(v - mean)^T."""
    mean = mean_of(law)
    total = [[ZERO] * len(mean) for _ in mean]
    for value, p in law.items():
        centred = tuple(a - b for a, b in zip(value, mean, strict=True))
        for i, a in enumerate(centred):
            for j, b in enumerate(centred):
                if a and b:
                    total[i][j] += p * a * b
    return tuple(tuple(row) for row in total)


def mse_of(law: Law, target: Vector) -> Fraction:
    """E ||v - target||^2."""
    total = ZERO
    for value, p in law.items():
        error = tuple(a - b for a, b in zip(value, target, strict=True))
        total += p * dot(error, error)
    return total


@dataclass(frozen=True)
class Exact:
    """What the enumeration gives."""

    mean: Vector
    covariance: Matrix
    mse: Fraction


@cache
def brute_force(
    problem: Problem,
    name: str,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
    constant: Fraction = ZERO,
) -> Exact:
    """Mean, covariance and MSE around g = grad J of the estimator, by enumeration."""
    law = minibatch_law(problem, name, group_size, batch_size, design, constant)
    assert sum(law.values()) == 1
    return Exact(mean_of(law), covariance_of(law), mse_of(law, gradient(problem)))


def brute_force_mse(problem: Problem, name: str, group_size: int) -> Fraction:
    """The MSE at B = 1, by counts instead of tuples: for large groups."""
    law = minibatch_law(problem, name, group_size, 1, "iid", law_of_group=group_law_by_counts)
    assert sum(law.values()) == 1
    return mse_of(law, gradient(problem))


# --------------------------------------------------------------------------------------------
# 3. Moments of a context, by direct expectation over its outcomes
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """The moments of one context. The scalars are summed by themselves, not as traces."""

    value: Fraction  # V = E z
    sigma2: Fraction  # Var z
    trF: Fraction  # tr F = E ||s||^2
    norm_z: Fraction  # E ||s||^2 z
    norm_z2: Fraction  # E ||s||^2 z^2
    norm_a: Fraction  # E ||s||^2 a
    tau: Fraction  # E ||s||^2 a^2
    g: Vector  # E s z
    g2: Fraction  # ||g||^2
    fisher: Matrix  # F = E s s^T
    sigma: Matrix  # Sigma = Cov(s a)

    @property
    def b_star(self) -> Fraction:
        """The minimum-variance baseline."""
        return self.norm_z / self.trF


def expect_vector(outcomes: list[Outcome], f: Callable[[Outcome], Vector]) -> Vector:
    """E f over one rollout, for a vector-valued f."""
    return mean_of_pairs([(o.prob, f(o)) for o in outcomes])


def mean_of_pairs(pairs: list[tuple[Fraction, Vector]]) -> Vector:
    """Sum of probability * vector."""
    total = (ZERO,) * len(pairs[0][1])
    for p, v in pairs:
        total = add(total, scale(p, v))
    return total


@cache
def moments(problem: Problem, x: int) -> Moments:
    """The moments of context x."""
    outcomes = problem.outcomes(x)
    value = expect(outcomes, lambda o: o.reward)
    g = expect_vector(outcomes, lambda o: scale(o.reward, o.score))
    centred = [(o.prob, add(scale(o.reward - value, o.score), scale(-ONE, g))) for o in outcomes]
    return Moments(
        value=value,
        sigma2=expect(outcomes, lambda o: (o.reward - value) ** 2),
        trF=expect(outcomes, square_norm),
        norm_z=expect(outcomes, lambda o: square_norm(o) * o.reward),
        norm_z2=expect(outcomes, lambda o: square_norm(o) * o.reward**2),
        norm_a=expect(outcomes, lambda o: square_norm(o) * (o.reward - value)),
        tau=expect(outcomes, lambda o: square_norm(o) * (o.reward - value) ** 2),
        g=g,
        g2=dot(g, g),
        fisher=combine(*((o.prob, outer(o.score, o.score)) for o in outcomes)),
        sigma=combine(*((p, outer(v, v)) for p, v in centred)),
    )


@cache
def gradient(problem: Problem) -> Vector:
    """The target g = grad J = E s z over contexts, arms and rewards."""
    return mean_of_pairs(
        [(problem.context_probs[x], moments(problem, x).g) for x in problem.contexts]
    )


# --------------------------------------------------------------------------------------------
# 4. Closed forms of the theory
# --------------------------------------------------------------------------------------------


def second_moment(problem: Problem, x: int, b: Fraction) -> Matrix:
    """E[s s^T (z - b)^2 | x]."""
    outcomes = problem.outcomes(x)
    return combine(*((o.prob * (o.reward - b) ** 2, outer(o.score, o.score)) for o in outcomes))


def theorem_2(
    problem: Problem, x: int, name: str, group_size: int, constant: Fraction = ZERO
) -> Matrix:
    """Cov(ghat | x) of one group."""
    m, G = moments(problem, x), group_size
    gg = outer(m.g, m.g)
    if name in ("grpo", "group-mean"):
        second = Fraction(1, G * (G - 1))
        grpo = combine((Fraction(1, G), m.sigma), (second * m.sigma2, m.fisher), (second, gg))
        return combine((mean_factor(name, G) ** 2, grpo))
    if name == "oracle":
        return combine((Fraction(1, G), m.sigma))
    b = {"vanilla": ZERO, "constant": constant, "minimum-variance": m.b_star}[name]
    return combine((Fraction(1, G), second_moment(problem, x, b)), (Fraction(-1, G), gg))


def mean_factor(name: str, group_size: int) -> Fraction:
    """E ghat = factor * g: the full group mean is (G-1)/G times grpo, the others are unbiased."""
    return Fraction(group_size - 1, group_size) if name == "group-mean" else ONE


def covariance_of_gradients(problem: Problem) -> Matrix:
    """Cov_X g(X), whose trace is c1."""
    g = gradient(problem)
    return combine(
        *(
            (problem.context_probs[x], outer(moments(problem, x).g, moments(problem, x).g))
            for x in problem.contexts
        ),
        (-ONE, outer(g, g)),
    )


def proposition_3(
    problem: Problem,
    name: str,
    group_size: int,
    batch_size: int,
    design: str,
    constant: Fraction = ZERO,
) -> Matrix:
    """Cov(ghat) of the minibatch."""
    N, B, rho = len(problem.context_probs), batch_size, problem.context_probs
    inner = [theorem_2(problem, x, name, group_size, constant) for x in problem.contexts]
    if design == "fixed":
        return combine(*((Fraction(1, N**2), c) for c in inner))
    shrink = mean_factor(name, group_size) ** 2
    if design == "without-replacement":
        # (a single context has no spread, and (N-B)/(N-1) would be 0/0)
        shrink *= Fraction(N - B, N - 1) if N > 1 else ZERO
    return combine(
        (shrink / B, covariance_of_gradients(problem)),
        *((p / B, c) for p, c in zip(rho, inner, strict=True)),
    )


def closed_mse(
    problem: Problem,
    name: str,
    group_size: int,
    batch_size: int = 1,
    design: str = "iid",
    constant: Fraction = ZERO,
) -> Fraction:
    """Trace of Proposition 3, and the squared bias of the full group mean."""
    g = gradient(problem)
    bias = (ONE - mean_factor(name, group_size)) ** 2 * dot(g, g)
    return trace(proposition_3(problem, name, group_size, batch_size, design, constant)) + bias


def scalar_grpo_mse(m: Moments, group_size: int) -> Fraction:
    """Theorem 2 for grpo: tr Sigma/G + c3/(G(G-1)), with tr Sigma = tau - ||g||^2."""
    G = group_size
    return (m.tau - m.g2) / G + (m.sigma2 * m.trF + m.g2) / (G * (G - 1))


def constants(problem: Problem) -> tuple[Fraction, Fraction, Fraction]:
    """c1, c2, c3 of the minibatch MSE (1/B)(c1 + c2/G + c3/(G(G-1)))."""
    c2 = c3 = ZERO
    for x, p in zip(problem.contexts, problem.context_probs, strict=True):
        m = moments(problem, x)
        c2 += p * (m.tau - m.g2)
        c3 += p * (m.sigma2 * m.trF + m.g2)
    return trace(covariance_of_gradients(problem)), c2, c3


def corollary_4(problem: Problem, group_size: int) -> Fraction:
    """MSE_grpo / MSE_oracle for i.i.d. prompts: 1 + c3 / ((G-1)(G c1 + c2)), at any B."""
    c1, c2, c3 = constants(problem)
    return 1 + c3 / ((group_size - 1) * (group_size * c1 + c2))


def corollary_4_one_prompt(m: Moments, group_size: int) -> Fraction:
    """The ratio 1 + (phi + ||g||^2) / ((G-1)(tau - ||g||^2)), phi = sigma2 tr F."""
    return 1 + (m.sigma2 * m.trF + m.g2) / ((group_size - 1) * (m.tau - m.g2))


def corollary_5_sides(m: Moments, group_size: int) -> tuple[Fraction, Fraction]:
    """Grpo beats vanilla iff the first is greater than the second."""
    left = m.value**2 * m.trF + 2 * m.value * m.norm_a
    return left, (m.sigma2 * m.trF + m.g2) / (group_size - 1)


def second_order_term(m: Moments, group_size: int) -> Fraction:
    """(sigma2 tr F + ||g||^2)/(G(G-1))."""
    return (m.sigma2 * m.trF + m.g2) / (group_size * (group_size - 1))


def explicit_bound(m: Moments, group_size: int, reward_range: Fraction) -> Fraction:
    """R^2 E||s||^2/(G(G-1))."""
    return reward_range**2 * m.trF / (group_size * (group_size - 1))


# --------------------------------------------------------------------------------------------
# 5. Rivals: wrong on purpose
# --------------------------------------------------------------------------------------------


def mse_rivals(problem: Problem, x: int, group_size: int) -> dict[str, Fraction]:
    """Wrong values of E[||ghat_grpo - g(x)||^2 | x]."""
    m, G = moments(problem, x), group_size
    phi, pairs, first = m.sigma2 * m.trF, G * (G - 1), (m.tau - m.g2) / G
    mean_z2 = expect(problem.outcomes(x), lambda o: o.reward**2)
    return {
        "no second-order term": first,
        "G^2 for G(G-1)": first + (phi + m.g2) / G**2,
        "||g||^2 missing": first + phi / pairs,
        "E z^2 for sigma2": first + (mean_z2 * m.trF + m.g2) / pairs,
        "sigma2 tr F missing": first + m.g2 / pairs,
        "the bound as the value": first + explicit_bound(m, G, problem.reward_range()),
        "Sigma without - g g^T": m.tau / G + (phi + m.g2) / pairs,
    }


def minibatch_rivals(problem: Problem, group_size: int, batch_size: int) -> dict[str, Fraction]:
    """Wrong values of the grpo MSE for i.i.d. prompts."""
    c1, c2, c3 = constants(problem)
    N, B, G = len(problem.context_probs), batch_size, group_size
    inner = c2 / G + c3 / (G * (G - 1))
    fixed = sum((scalar_grpo_mse(moments(problem, x), G) for x in problem.contexts), ZERO) / N**2
    return {
        "prompt term divided by G": (c1 / G + inner) / B,
        "no prompt term": inner / B,
        "inner terms not divided by B": c1 / B + inner,
        "fixed-set formula": fixed,
    }


def without_replacement_rival(problem: Problem, group_size: int, batch_size: int) -> Fraction:
    """(N-B)/N for (N-B)/(N-1)."""
    c1, c2, c3 = constants(problem)
    N, B, G = len(problem.context_probs), batch_size, group_size
    return (c1 * Fraction(N - B, N) + c2 / G + c3 / (G * (G - 1))) / B


def oracle_rivals(problem: Problem, group_size: int) -> dict[str, Fraction]:
    """Wrong values of MSE_grpo / MSE_oracle; the two wrong orders agree with the truth at G = 2."""
    c1, c2, c3 = constants(problem)
    G = group_size
    at_two = c3 / (2 * c1 + c2)
    wrong_order = at_two / (G - 1) if c1 else at_two / (G - 1) ** 2
    return {
        "1 + 1/G": 1 + Fraction(1, G),
        "(G/(G-1))^2": Fraction(G, G - 1) ** 2,
        "excess 1/G with c1 > 0" if c1 else "excess 1/G^2 at one prompt": 1 + wrong_order,
    }


# --------------------------------------------------------------------------------------------
# 6. Lemma 1 and the Hoeffding decomposition, one group at a time
# --------------------------------------------------------------------------------------------


def pair_mean(group: Group, kernel: Callable[[Outcome, Outcome], Vector]) -> Vector:
    """2/(G(G-1)) sum_{i<j} kernel."""
    total = (ZERO,) * len(group[0].score)
    for j in range(len(group)):
        for i in range(j):
            total = add(total, kernel(group[i], group[j]))
    return scale(Fraction(2, len(group) * (len(group) - 1)), total)


def u_statistic(group: Group) -> Vector:
    """Kernel h = 1/2 (s_1 - s_2)(z_1 - z_2)."""
    return pair_mean(
        group,
        lambda o, p: scale((o.reward - p.reward) / 2, add(o.score, scale(-ONE, p.score))),
    )


def hoeffding(problem: Problem, x: int, group: Group) -> tuple[Vector, Vector]:
    """The first- and the second-order part of a group's gradient."""
    m = moments(problem, x)
    first = (ZERO,) * problem.dimension
    for o in group:
        first = add(first, add(scale(o.reward - m.value, o.score), scale(-ONE, m.g)))
    second = pair_mean(
        group,
        lambda o, p: scale(
            Fraction(-1, 2),
            add(scale(p.reward - m.value, o.score), scale(o.reward - m.value, p.score)),
        ),
    )
    return scale(Fraction(1, len(group)), first), second
