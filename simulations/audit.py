"""The audit of a run: each value derived anew from the paper's definitions, in exact fractions.

    python simulations/audit.py results/quick

This file imports Python's standard library alone: who has read it has read all. A run stores its problems
(probabilities, rewards, scores: a double is an exact binary fraction), what each check is about, what was
predicted and what was enumerated. From the first two the audit derives the value, and compares.

A value is an expectation over all groups of G independent outputs, with multinomial chances. Advantages
read rewards alone; given these the scores are independent, so that groups of rewards are listed. Given the
prompts their groups are independent: a minibatch follows from means and second moments. Deviations are cut
off after 40 digits and logarithms are doubles, all else is exact. Exit codes: 0 every derived value agrees, 1
one does not, 2 the folder lacks what is needed.
"""

import json
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement
from math import comb, factorial, isqrt, lcm, log, prod
from operator import mul
from pathlib import Path

FILES = ("verdicts.json", "definitions.json")
AGREE = 1e-11  # a difference that is rounding, relative to the size of what is added up
MOST_GROUPS = {"rewards": 25_000, "outputs": 300}  # that are listed
RUNS = ("suboptimality", "limit_law", "oracle_policy", "optimal_policy")  # not at fixed parameters


def whole(rows):
    """Rows of whole numbers over one denominator, and it: faster than fractions one by one."""
    common = lcm(*[value.denominator for row in rows for value in row])
    return [[v.numerator * (common // v.denominator) for v in row] for row in rows], common


def total(values):
    (numbers,), common = whole([values])
    return Fraction(sum(numbers), common)


def dot(u, v):
    return total([a * b for a, b in zip(u, v, strict=True)])


def mix(weights, vectors):
    return [dot(weights, column) for column in zip(*vectors, strict=True)]


def average(values):
    return total(values) / (len(values) or 1)


def shares(weights):
    """Weights as shares of their sum; probabilities sum to 1 up to rounding only."""
    fractions = [*map(Fraction, weights)]
    return [one / total(fractions) for one in fractions]


# ---- 1. Definitions: the advantage of an output with reward z, by the rewards of the rest of its group.
def per_deviation(z, ddof):
    """One over the standard deviation of z, cut off after 40 digits; 0 where the deviation is 0."""
    mean = average(z)
    square = total([(one - mean) ** 2 for one in z]) / max(len(z) - ddof, 1)
    return Fraction(isqrt(10**80 * square.denominator // square.numerator), 10**40) if square else 0


def gain(z, rest, k, fewer):
    own, none = combinations(rest, int(k) - 1), combinations(rest, int(fewer))
    return k * (average([max([z, *some]) for some in own]) - average([*map(max, none)]))


OF_PROMPT = {  # the baseline: n the estimator's numbers, x the prompt's place, its outcomes' p, z and s
    "vanilla": lambda n, x, p, z, s: Fraction(0),
    "constant": lambda n, x, p, z, s: n[0],
    "critic": lambda n, x, p, z, s: n[x],
    "oracle": lambda n, x, p, z, s: dot(p, z),
    "minimum-variance": lambda n, x, p, z, s: dot(shares(map(mul, p, map(dot, s, s))), z),
}
OF_GROUP = {  # the advantage: rest are the others' rewards, zs the group's, n the estimator's numbers
    "grpo": lambda z, rest, zs, n: z - average(rest),
    "group-mean": lambda z, rest, zs, n: z - average(zs),
    "bayes": lambda z, rest, zs, n: z - (n[0] + sum(rest)) / (n[0] + n[1] + len(rest)),
    "shrinkage": lambda z, rest, zs, n: z - (1 - n[0]) * average(rest) - n[0] * n[1],
    "std": lambda z, rest, zs, n: (z - average(zs)) * per_deviation(zs, 0),
    "std-ddof1": lambda z, rest, zs, n: (z - average(zs)) * per_deviation(zs, 1),
    "others-std": lambda z, rest, zs, n: (z - average(rest)) * (per_deviation(rest, 1) or 1),
    "maxrl": lambda z, rest, zs, n: z / average(zs) - 1 if average(zs) > 0 else Fraction(0),
    "pass-at-k": lambda z, rest, zs, n: gain(z, rest, n[0], min(n[0], len(rest))),
    "gain-at-k": lambda z, rest, zs, n: gain(z, rest, n[0], n[0] - 1),
    "count-table": lambda z, rest, zs, n: n[int(sum(rest)) + (0 if z else len(zs))],
    "loo-table": lambda z, rest, zs, n: z - n[int(sum(rest))],
}


def advantage(label, problem, x):
    """An estimator's advantage as a function of an output's reward and of those of the others."""
    name, _, text = label.partition(":")
    numbers = [Fraction(float(word)) for word in text.split(",") if word]
    if name in OF_PROMPT:
        baseline = OF_PROMPT[name](numbers, x, *zip(*problem.prompts[x], strict=True))
        return lambda z, rest: z - baseline
    if name not in OF_GROUP:
        raise NotImplementedError(f"no definition of {name}")
    return lambda z, rest: OF_GROUP[name](z, rest, [z, *rest], numbers)


# ---- 2. Problems: prompts with their chances, and of each the outcomes (probability, reward, score).
class Problem:
    def __init__(self, stored):
        self.prompts, gradients, self.chances = [], [], shares(stored["chances"])
        for rows, scores in zip(stored["outcomes"], stored["scores"], strict=True):
            p, z, arms = zip(*rows, strict=True)
            p, z, s = shares(p), [*map(Fraction, z)], [[*map(Fraction, scores[k])] for k in arms]
            self.prompts.append([*zip(p, z, s, strict=True)])
            gradients.append(mix([a * b for a, b in zip(p, z, strict=True)], s))
            if "target" not in stored and max(map(abs, mix(p, s))) > AGREE:
                raise ValueError("scores whose mean is not 0")
        # g = E s z, the gradient of the expected reward; weighted scores are held against that of plain ones.
        self.target = [*map(Fraction, stored.get("target", mix(self.chances, gradients)))]
        self.units = {int(n): [*map(Fraction, unit)] for n, unit in stored["directions"].items()}


# ---- 3. Groups and minibatches: E ĝ and E‖ĝ‖².
def groups(chances, size, most):
    """Every group: how often each mark occurs, and a whole number to which its chance is proportional."""
    if comb(len(chances) + size - 1, size) > most:
        raise NotImplementedError("too many groups")
    (weights,), _ = whole([chances])
    for group in combinations_with_replacement(range(len(chances)), size):
        numbers = Counter(group)
        orders = factorial(size) // prod(map(factorial, numbers.values()))
        yield numbers, orders * prod(weights[i] ** n for i, n in numbers.items())


def advantages(numbers, rewards, weigh):
    """Of each reward in a group: its place, how often it occurs, and the advantage of such an output."""
    for i, n in numbers.items():
        rest = [rewards[j] for j, m in numbers.items() for _ in range(m - (i == j))]
        yield i, n, weigh(rewards[i], rest)


@cache
def law(problem, size, labels, x, unit):
    """E ĝ and E‖ĝ‖² of ĝ = (1/G) Σ sᵢ Aᵢ at a prompt, by an estimator or the difference of two.

    Given the rewards, ĝ has the mean Σ Aᵢ E[sᵢ | zᵢ] / G, and scores scatter around theirs independently.
    """
    first, *other = [advantage(label, problem, x) for label in labels]
    weigh = first if not other else lambda z, rest: first(z, rest) - other[0](z, rest)
    levels = defaultdict(list)
    for p, z, s in problem.prompts[x]:
        levels[z].append((p, s if unit is None else [dot(s, problem.units[unit])]))
    chances = [sum(p for p, _ in level) for level in levels.values()]
    given = [(shares(p for p, _ in level), [v for _, v in level]) for level in levels.values()]
    means = [mix(law, vectors) for law, vectors in given]
    squares = [dot(law, [dot(v, v) for v in vectors]) for law, vectors in given]
    inner = [[dot(u, v) for v in means] for u in means]
    (squares, *inner), scale = whole([squares, *inner])
    every, mean, square = 0, [Counter() for _ in means], Counter()  # by their denominators
    for numbers, ways in groups(chances, size, MOST_GROUPS["rewards"]):
        places, counts, weights = zip(*advantages(numbers, [*levels], weigh), strict=True)
        (weights, sums), below = whole([weights, [*map(mul, counts, weights)]])
        every += ways
        for i, a, of_reward in zip(places, weights, sums, strict=True):
            along = sum(inner[i][j] * other for j, other in zip(places, sums, strict=True))
            mean[i][below] += ways * of_reward
            square[below**2] += ways * of_reward * (a * (squares[i] - inner[i][i]) + along)
    *mean, square = [total([Fraction(n, d) for d, n in of.items()]) for of in (*mean, square)]
    return mix([a / every / size for a in mean], means), square / scale / every / size**2


def minibatch(problem, size, batch, design, labels, unit):
    """E ĝ and E‖ĝ‖² of B prompts: independent, or without replacement; each once is the case B = N."""
    number = len(problem.prompts)
    means, squares = zip(*[law(problem, size, labels, x, unit) for x in range(number)], strict=True)
    mean = mix(problem.chances, means)
    pairs = dot(mean, mean)
    if design != "iid" and batch > 1:  # two different prompts
        alike = dot(problem.chances, [dot(one, one) for one in means])
        pairs = (number * pairs - alike) / (number - 1)
    return mean, (dot(problem.chances, squares) + (batch - 1) * pairs) / batch


def lemma_1(problem, size, formula, label):
    """E‖ĝ - f‖² output by output: f a U-statistic of h = ½(s - s')(z - z'), or Hoeffding's parts of it."""
    chances, z, scores = zip(*problem.prompts[0], strict=True)
    weigh, places, squares = advantage(label, problem, 0), range(len(z)), []
    listed = [*groups(chances, size, MOST_GROUPS["outputs"])]
    for s in zip(*scores, strict=True):  # coordinate by coordinate
        h = [[(s[i] - s[j]) * (z[i] - z[j]) / 2 for j in places] for i in places]
        h1 = [dot(chances, row) for row in h]
        g = dot(chances, h1)
        h2 = [[h[i][j] - h1[i] - h1[j] + g for j in places] for i in places]
        for numbers, ways in listed:
            group = [*numbers.elements()]
            u = average([h[i][j] for i, j in combinations(group, 2)])
            first = g + 2 * average([h1[i] - g for i in group])
            second = average([h2[i][j] for i, j in combinations(group, 2)])
            f = {
                "U-statistic": u,
                "(G-1)/G U-statistic": u - u / size,
                "g + first": first,
                "mean of 2 h1 - g": first,
                "g + first + second": first + second,
                "U-statistic + E[h2 | one output]": u + dot(chances, h2[group[0]]),
            }[formula.removesuffix(" in O(G d)")]
            ghat = total([s[i] * n * a for i, n, a in advantages(numbers, z, weigh)]) / size
            squares.append(ways * (ghat - f) ** 2)
    return total(squares) / sum(ways for _, ways in listed)


def quantity(problem, setting, kind, *words):
    """What a check is about, with the size of what is added up in it."""
    if kind == "formula":  # relative to the largest score times the largest reward
        scale = max(dot(s, s) for _, _, s in problem.prompts[0])
        scale *= max(z * z for _, z, _ in problem.prompts[0])
        return lemma_1(problem, setting[0], *words) / (scale or 1), 1
    number = words[0] if "projection" in kind else None
    g = problem.target if number is None else [dot(problem.target, problem.units[number])]
    labels = tuple(word for word in words if isinstance(word, str))
    mean, square = minibatch(problem, *setting, labels, number)
    error, size = square - 2 * dot(mean, g) + dot(g, g), square + dot(g, g)
    if kind == "projection":
        return mean[0] - g[0], Fraction(float(error) ** 0.5)
    return square if kind == "distance" else error, size  # a distance is that of two estimators


def derive(problems, of):
    """The value of a sum of quantities, a ratio, a mixture, or the slope of logarithms."""
    if "sum" in of:
        name, *setting = of["of"]
        parts = [quantity(problems[name], setting, *words) for _, *words in of["sum"]]
        weights, start = [Fraction(weight) for weight, *_ in of["sum"]], Fraction(of["plus"])
    else:
        (kind, points), *_ = of.items()
        parts, start = [derive(problems, point) for point in points], 0
        if kind == "ratio":
            (top, size), (bottom, other) = parts
            return top / bottom, (size + abs(top / bottom) * other) / bottom
        weights = [*map(Fraction, of["at"])]
        if kind == "slope":
            apart = [one - average(weights) for one in weights]
            weights = [one / dot(apart, apart) for one in apart]
            parts = [(Fraction(log(value)), size / value) for value, size in parts]
    values, sizes = zip(*parts, strict=True)
    return start + dot(weights, values), dot(map(abs, weights), sizes)


def audit(folder):
    """The comparison of derived values with the run's, printed; 1 where one differs, else 0."""
    run, stored = (json.loads((Path(folder) / name).read_text("utf-8")) for name in FILES)
    if run["run"]["versions"] != stored["versions"]:
        raise ValueError("verdicts and definitions come from different code")
    problems = {name: Problem(one) for name, one in stored["problems"].items()}
    checks = [(c["stem"], one) for c in run["claims"] for one in c["checks"]]
    derived, whys, worst, wrong, near = Counter(), Counter(), Counter(), [], 0
    for stem, check in checks:
        try:
            if isinstance(of := stored["checks"][stem][check["name"]], str):
                raise NotImplementedError(of)
            value, size = (float(number) for number in derive(problems, of))
        except NotImplementedError as why:
            whys[str(why)] += stem not in RUNS
            continue
        derived[stem] += 1
        size, (low, high) = size or 1.0, check["region"]
        itself = 0.0 if None in (low, high) else (high - low) / 2  # the prediction's own error
        enumerated = (check["exact"] or {}).get("estimate")
        for kind, number in (("predicted", check["prediction"]), ("enumerated", enumerated)):
            apart = 0.0 if number is None else abs(value - number)
            allowed = max(AGREE * size, itself * (kind == "predicted"))
            if AGREE * size < apart <= allowed:
                near += 1
            else:
                worst[kind] = max(worst[kind], apart / size)
            if apart > allowed:
                wrong.append(f"{stem}: {check['name']}: derived {value!r}, {kind} {number!r}")
    numbers = Counter(stem for stem, _ in checks)
    print(*(f"{stem:17}{derived[stem]:5} of {n:4}" for stem, n in numbers.items()), sep="\n")
    ours, every = (sum(n for stem, n in c.items() if stem not in RUNS) for c in (derived, numbers))
    print(f"\nDerived anew: {ours} of {every} checks at fixed parameters.")
    print("Not derived:", "; ".join(f"{n} {why}" for why, n in whys.most_common() if n) or "none")
    print("Largest relative difference:", *(f"{n:.1e} {kind}," for kind, n in worst.items()))
    print(f"where {near} predictions are left out: approximations, nearer than they say.")
    print(*[f"DIFFERS: {line}" for line in wrong] or ["All of them agree."], sep="\n")
    return int(bool(wrong))


def main(folder):
    try:
        return audit(folder)
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        print(f"audit: {folder}: not a run that can be audited: {error!r}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["results/quick"]))
