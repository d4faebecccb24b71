"""Groups whose size depends on rewards, against every sequence of outputs, in exact fractions.

A second mind's reading of the plans' words, of the estimators and of the fates of outputs.
"""

from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import permutations, product
from math import comb, prod, sqrt

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support.problems import library_problem
from ustat_pg import predictions
from ustat_pg.estimators import sequential, two_stage
from ustat_pg.problems import survivor_moments
from ustat_pg.validation import changed

HALF = Fraction(1, 2)


def shared(name, *rewards):
    """Two prompts of three arms, with scores made by hand; their gradients are not orthogonal."""
    flat = ind.tabular(name, "1/3 2/3", ["1/2 1/4 1/4", "1/6 1/3 1/2"], list(rewards))
    rows = [["1 0", "-3 1", "1 -1"], ["0 3", "3 0", "-2 -1"]]
    scores = tuple(np.array([ind.fractions(row) for row in arms]) for arms in rows)
    return ind.Problem(name, flat.context_probs, flat.arm_probs, scores, flat.rewards)


PAIR = shared("pair", "1 0 0", "0:1/4,1:3/4 0 1")
HOPELESS = shared("one prompt is hopeless", "0 0 0", "1 0 1")
SOLVED = shared("one prompt is solved", "1 0 1", "1 1 1")
GRADED = shared("graded", "2 0 1/2", "1/2:1/4,1:3/4 0 -1")


def mixed(z):
    return 0 < sum(z) < len(z)


def silent(z):
    return sum(z) in (0, len(z))


def looks(last, **chances):
    """Draws on to ``last``, but at the look ``n`` only with its chance, given the rewards."""
    at = {int(name[1:]): chance for name, chance in chances.items()}
    return lambda z: Fraction(at[len(z)](z)) if len(z) in at else Fraction(len(z) < last)


USED = (lambda z: 1, "")
#: The chance to draw on, the chance to use a group, and what takes its place: words by their meaning.
WAYS = {
    "2": (looks(2), *USED),
    "4": (looks(4), *USED),
    "3+2 if mixed": (looks(5, n3=mixed), *USED),
    "2,3,5 until 1 success and 1 failure": (looks(5, n2=silent, n3=silent), *USED),
    "2..3 until 1 success": (looks(3, n2=lambda z: sum(z) == 0), *USED),
    "1,3,4 until 2 successes": (looks(4, n3=lambda z: sum(z) < 2), *USED),
    "2+2 if silent": (looks(4, n2=silent), *USED),
    "2+2 if mixed 0.5": (looks(4, n2=lambda z: HALF * mixed(z)), *USED),
    "2+1 if unsolved 0.25": (looks(3, n2=lambda z: HALF**2 * (sum(z) == 0)), *USED),
    "3+1 if 0.5..1, drop early": (looks(4, n3=lambda z: sum(z) > 1), lambda z: len(z) > 3, ""),
    "3, retry silent 0.5": (looks(3), lambda z: 1 - HALF * silent(z), "prompt"),
    "2+2 if silent, retry solved": (looks(4, n2=silent), lambda z: sum(z) < len(z), "prompt"),
    "2, refill silent": (looks(2), mixed, "batch"),
    "2+1 if silent, refill early 0.5": (looks(3, n2=silent), lambda z: HALF * len(z[1:]), "batch"),
}
EVERY_GROUP = [words for words in WAYS if "," not in words or "until" in words]


def rewards(group):
    return tuple(output.reward for output in group)


def finished(outcomes, go_on, drawn=(), chance=1):
    """Every group at which the plan stops, as outputs in the order drawn, and its chance."""
    more = go_on(rewards(drawn))
    if more < 1:
        yield drawn, chance * (1 - more)
    for output in outcomes if more else ():
        yield from finished(outcomes, go_on, (*drawn, output), chance * more * output.prob)


def over_orders(z, go_on):
    """The kernel of the first two outputs, averaged over all orders by the chance of each."""
    n, total, weight = len(z), 0, Counter()
    for order in permutations(range(n)):
        seen = tuple(z[i] for i in order)
        likely = (1 - go_on(seen)) * prod(go_on(seen[:m]) for m in range(2, n))
        total += likely
        for first, second in (order[:2], order[1::-1]):
            weight[first, second] += likely * HALF
    return [n * sum(weight[i, j] * (z[i] - z[j]) for j in range(n)) / total for i in range(n)]


def balanced_by_hand(z, outputs, divisor):
    n, share = len(z), Fraction(sum(z), len(z))
    kinds = [[i for i in range(n) if z[i] == value] for value in (1, 0)]
    right = min(len(kinds[0]), max(outputs // 2, outputs - len(kinds[1])))
    chosen = {*kinds[0][:right], *kinds[1][: outputs - right]}
    scale = {"": 1, "-inverse": share, "-std": sqrt(share * (1 - share) * n / (n - 1))}[divisor]
    return [(z[i] - share) / (scale or 1) * n / outputs * (i in chosen) for i in range(n)]


def advantages(estimator, z, go_on):
    n, mean = len(z), Fraction(sum(z), len(z))
    if estimator == "sequential":
        return over_orders(z, go_on)
    if estimator.startswith("balanced"):
        kind, outputs = estimator.removeprefix("balanced").split(":")
        return balanced_by_hand(z, int(outputs), kind)
    deviation = sqrt(mean * (1 - mean)) if estimator == "std" else 1
    scale = Fraction(n - 1, n) if estimator == "grpo" else deviation or 1
    return [(reward - mean) / scale for reward in z]


def gradient_of(group, weights):
    return sum(w * output.score for w, output in zip(weights, group, strict=True)) / len(group)


def expect(problem, go_on, values, fates=None):
    """The expectation of each of a group's values, by prompt."""
    rows = []
    for of_prompt in fates or map(problem.outcomes, problem.contexts):
        terms = [[p * value for value in values(group)] for group, p in finished(of_prompt, go_on)]
        rows.append([sum(column) for column in zip(*terms, strict=True)])
    return [np.array(column) for column in zip(*rows, strict=True)]


@cache
def law(problem, words, estimator):
    """E ĝ, E‖ĝ‖² and the outputs drawn for one group that counts, by prompt."""
    go_on, chance_used, otherwise = WAYS[words]
    advantage = cache(lambda z: advantages(estimator, z, go_on))

    def values(group):
        z = rewards(group)
        ghat, used = gradient_of(group, advantage(z)), chance_used(z)
        return used * ghat, used * (ghat @ ghat), len(z), used

    *columns, used = expect(problem, go_on, values)
    # v = what a used group adds + (chance of another turn) v: the geometric series
    turns = {"": 1, "prompt": used, "batch": problem.context_probs @ used}[otherwise]
    return [(column.T / turns).T for column in columns]


def same(found, truth):
    assert found == pytest.approx(np.asarray(truth, dtype=float), rel=1e-12, abs=1e-14)


def agrees(found, problem, enumerated, batch=1):
    """Asserts that a prediction is the enumerated law, at a batch of independent groups."""
    rho, g, (means, squares, sizes) = problem.context_probs, ind.gradient(problem), enumerated
    mean = rho @ means
    variance, strength, bias = rho @ squares - mean @ mean, mean @ mean, mean - g
    same(found.second_moment, squares)
    same(found.squared_bias, bias @ bias)
    same(found.mse, variance / batch + bias @ bias)
    same(found.noise_to_signal, variance / batch / strength)
    same(found.cosine, float(mean @ g) / sqrt(strength * (g @ g)))
    if hasattr(found, "mean_factor"):
        prompts = [ind.moments(problem, x).g for x in problem.contexts]
        same(found.mean_factor[:, None] * np.array(prompts, dtype=float), means)
        same(found.sizes, sizes)
        same(found.expected_size, rho @ sizes)
        same(found.critical_budget, float(rho @ sizes) * variance / strength)


BALANCED = ("balanced", "balanced-inverse", "balanced-std")
ESTIMATORS = ["sequential", "grpo", "group-mean", "std", *[f"{name}:2" for name in BALANCED]]


@pytest.mark.parametrize("words", WAYS)
@pytest.mark.parametrize("problem", [PAIR, HOPELESS, SOLVED])
def test_plan_mse_is_the_enumerated_law(problem, words):
    for estimator in ESTIMATORS + [f"{name}:4" for name in BALANCED if words == "4"]:
        if problem is SOLVED and words.endswith("retry solved"):
            assert (
                predictions.plan_mse(library_problem(problem), words, estimator).expected_size
                == np.inf
            )
            continue
        for batch in (1, 3):
            result = predictions.plan_mse(library_problem(problem), words, estimator, batch)
            agrees(result, problem, law(problem, words, estimator), batch)


def test_a_prompt_that_is_never_drawn_changes_nothing():
    """Not even one whose groups would be drawn again without end."""
    words, one = "2+2 if silent, retry solved", SOLVED.contexts[:1]
    alone = library_problem(SOLVED).restrict(one)
    beside = changed(library_problem(SOLVED), context_probs=[1.0, 0.0])
    first, second = (predictions.plan_mse(each, words) for each in (alone, beside))
    for name in ("expected_size", "critical_budget", "mse", "noise_to_signal", "cosine"):
        same(getattr(second, name), getattr(first, name))


@pytest.mark.parametrize("words", EVERY_GROUP)
@pytest.mark.parametrize("problem", [PAIR, HOPELESS])
def test_sequential_is_unbiased_and_its_cost_is_outputs_times_noise(problem, words):
    g, rho, first = ind.gradient(problem), problem.context_probs, int(words[0])
    means, squares, sizes = law(problem, words, "sequential")
    assert all((means[x] == ind.moments(problem, x).g).all() for x in problem.contexts)
    later = expect(problem, WAYS[words][0], lambda group: [len(group) > first])[0]
    for stage_cost in (0, 3):
        result = predictions.plan_cost(library_problem(problem).moments(), words, stage_cost)
        same(result, rho @ (sizes + stage_cost * later) * (rho @ squares - g @ g))


@pytest.mark.parametrize("words", EVERY_GROUP)
def test_the_weight_at_sure_rewards_is_the_limit(words):
    rates = [Fraction(i, 9) for i in range(1, 7)]
    coins = [ind.one_rewarded(f"coin of {p}", f"{p} {1 - p}", 0) for p in rates]
    for estimator in ("sequential", "grpo", "group-mean", "balanced:2", "balanced-inverse:2"):
        weights = [law(coin, words, estimator)[0][0, 0] / ind.moments(coin).g[0] for coin in coins]
        for p in (*rates, 0, 1):  # a polynomial of degree 3, extended to the ends
            basis = [prod((p - b) / (a - b) for b in rates if b != a) for a in rates]
            same(predictions.plan_weight(words, estimator, float(p)), np.dot(weights, basis))


def rounds_of_eight(p, inverse):
    """w(p) of four outputs, two of each kind where there are, after one to four rounds of eight."""
    going, weight = {0: Fraction(1)}, Fraction(0)
    for n in (8, 16, 24, 32):
        reached = Counter()
        for (k, chance), more in product(going.items(), range(9)):
            reached[k + more] += chance * comb(8, more) * p**more * (1 - p) ** (8 - more)
        going = {k: c for k, c in reached.items() if n < 32 and not 2 <= k <= n - 2}
        for k in set(reached) - set(going) - {0}:
            right, share = min(k, max(2, 4 - (n - k))), Fraction(k, n)
            gain = right * (1 - share) / p + (4 - right) * share / (1 - p)
            weight += reached[k] * gain / 4 / (share if inverse else 1)
    return weight


def test_published_weights_of_theory_section_12():
    third = ind.one_rewarded("a third", "1/3 2/3", 0)
    assert (law(third, "3+2 if mixed", "grpo")[0][0] * 5 == ind.moments(third).g * 4).all()
    rates = np.array([0.0, 0.02, 0.3, 1.0])
    plans = ("8", "8, retry silent 0.25")
    once, retried = (predictions.plan_weight(plan, "std", rates) for plan in plans)
    same(retried * (1 - (rates**8 + (1 - rates) ** 8) / 4), once)
    words = "8,16,24,32 until 2 successes and 2 failures"
    for inverse, name in enumerate(("balanced:4", "balanced-inverse:4")):
        for p, published in ((0.1, ("3.95", "18.4")), (0.9, ("3.95", "2.06"))):
            truth = rounds_of_eight(Fraction(str(p)), inverse)
            same(predictions.plan_weight(words, name, p), truth)
            assert f"{float(truth / rounds_of_eight(HALF, inverse)):.3g}" == published[inverse]


#: For graded rewards: when to stop, or what pilots, in increasing order, ask for more.
RULES = {
    "large sum": lambda z: len(z) == 4 or sum(z) > 1,
    "two in a row": lambda z: len(z) == 4 or z[-1] == z[-2],
    "falls": lambda z: len(z) == 4 or (len(z) == 3 and z[1] < z[0]),
    "mixed": lambda z: z[0] != z[-1],
    "least": lambda z: z[0] > 0,
    "sum": lambda z: sum(z) >= 1,
}
CASES = [*product([*RULES][:3], [(2, 0)]), *product([*RULES][3:], [(2, 3), (2, 4), (3, 4)])]


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_advantages_of_graded_rewards_are_unbiased(name, sizes):
    rule, (pilot, last) = RULES[name], sizes
    two_looks = looks(last, **{f"n{pilot}": lambda z: rule(sorted(z))})
    go_on = two_looks if last else lambda z: int(len(z) < 2 or not rule(z))

    @cache
    def advantage(z):
        row, trigger = np.array(z, dtype=float), name if name == "mixed" else rule
        two = two_stage(row, pilot=pilot, trigger=trigger) if last else None
        result = two if last else sequential(row, plan=rule)
        same(result, over_orders(z, go_on))
        return result

    means = expect(GRADED, go_on, lambda group: [gradient_of(group, advantage(rewards(group)))])[0]
    same(means.astype(float), [ind.moments(GRADED, x).g for x in GRADED.contexts])


@pytest.mark.parametrize(("by_reward", "lone"), [*product((False, True), ("zero", "reward"))])
@pytest.mark.parametrize("problem", [PAIR, GRADED])
def test_survivors_are_enumerated_with_every_fate(problem, by_reward, lone):
    by_output = np.array([ind.fractions("1/2 1 1/3"), ind.fractions("1/4 2/3 0")])
    both = np.stack([by_output, by_output * HALF if by_reward else by_output], axis=-1)
    fates = [[], []]
    for x, k in product((0, 1), range(3)):
        for (z, q), h in zip(problem.rewards[x][k], both[x, k], strict=False):
            p, score = problem.arm_probs[x][k] * q, problem.scores[x][k]
            fates[x].append(ind.Outcome(p * h, score, z, None))
            fates[x].append(ind.Outcome(p * (1 - h), None, None, None))

    def values(group):
        left = [output for output in group if output.score is not None]
        z = rewards(left)
        weights = advantages("grpo", z, None) if len(left) > 1 else z if lone == "reward" else [0]
        ghat = gradient_of(left, weights) if left else 0 * problem.scores[0][0]
        return ghat, ghat @ ghat, len(left), len(left) > 1

    *enumerated, pairs = expect(problem, looks(3), values, fates)
    chances = np.array(both if by_reward else by_output, dtype=float)
    moments = survivor_moments(library_problem(problem), chances)
    for batch in (1, 2):
        result = predictions.survivor_mse(moments, 3, batch, lone=lone)
        agrees(result, problem, enumerated, batch)
    same(result.mean, problem.context_probs @ enumerated[0])
    same(result.weight, pairs)
    same(result.survivors, enumerated[2])


@pytest.mark.parametrize(("estimator", "pooled"), [*product(("grpo", "group-mean"), (False, True))])
def test_sizes_fixed_before(estimator, pooled):
    laws = [law(PAIR, words, estimator) for words in ("2", "4")]
    scale = np.array([2, 4]) / (PAIR.context_probs @ [2, 4]) if pooled else np.array([1, 1])
    rows = [np.array([laws[x][i][x] * scale[x] ** (i + 1) for x in (0, 1)]) for i in (0, 1)]
    for batch in (1, 3):
        result = predictions.sized_mse(
            library_problem(PAIR), [2, 4], estimator, batch, pooled=pooled
        )
        agrees(result, PAIR, (*rows, np.array([2, 4])), batch)


@pytest.mark.parametrize("problem", [PAIR, HOPELESS, GRADED])
def test_the_bound_is_the_least_over_real_sizes(problem):
    rho, g = problem.context_probs.astype(float), ind.gradient(problem)

    def cost(*sizes):
        noise = -float(g @ g)
        for x, n in enumerate(sizes):
            of = ind.moments(problem, x)
            first, second = float(of.tau - of.g2), float(of.sigma2 * of.trF + of.g2)
            noise = noise + rho[x] * (float(of.g2) + first / n + second / n / (n - 1))
        return (rho[0] * sizes[0] + rho[1] * sizes[1]) * noise

    ends = [(2.0, 500.0), (2.0, 500.0)]
    for _ in range(12):  # a grid, and finer ones about its best
        axes = [np.geomspace(*pair, 41) for pair in ends]
        costs = cost(axes[0][:, None], axes[1])
        at = np.unravel_index(costs.argmin(), costs.shape)
        ends = [(axes[x][max(at[x] - 2, 0)], axes[x][min(at[x] + 2, 40)]) for x in (0, 1)]
    result, sizes = predictions.known_rates_bound(library_problem(problem).moments())
    assert result == pytest.approx(costs.min(), rel=1e-9)
    same(result, cost(*sizes))


@pytest.mark.parametrize(("problem", "stage_cost"), [(PAIR, 0), (HOPELESS, 0), (HOPELESS, 2)])
def test_the_best_two_stage_plan_is_that_of_a_search(problem, stage_cost):
    moments = library_problem(problem).moments()
    plans = [(n, m) for n in range(2, 7) for m in range(1, 21 - n)]
    least = min(predictions.plan_cost(moments, f"{n}+{m} if mixed", stage_cost) for n, m in plans)
    limits = {"largest_pilot": 6, "largest_group": 20}
    plan, cost = predictions.best_two_stage(moments, **limits, stage_cost=stage_cost)
    same(cost, predictions.plan_cost(moments, plan, stage_cost))
    assert least * (1 - 1e-12) <= cost <= 1.02 * least


def test_few_two_stage_plans_are_nearly_alike():
    """Pilots and what comes on top: all that are small, and then about four an octave."""
    tried = predictions.adaptive.two_stage_plans(40, 400)
    looks = [plan.looks for plan in tried]
    for steps in (
        sorted({pilot - 1 for pilot, _ in looks}),
        [group - pilot for pilot, group in looks if pilot == 2],
    ):
        assert steps[:6] == [1, 2, 3, 4, 5, 6]
        ratios = np.divide(steps[6:], steps[5:-1])
        assert ratios.max() <= 2**0.375
        assert steps[-1] * ratios.max() > (39 if steps[-1] < 40 else 398)
        assert len(ratios) == pytest.approx(4 * np.log2(steps[-1] / 6), abs=1.5)
