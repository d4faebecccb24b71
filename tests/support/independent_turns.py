"""Credit over turns by a second mind: brute force over ordered groups of episodes, in exact fractions.

Nothing here is imported from the library. Three parts:

1. Problems: states, actions with rational probabilities, moves. Every episode is listed, with the scores of
   its turns: derivatives of log π in the logits.
2. Brute force: the advantage of one turn of one episode by each scheme, from its definition, and the first
   two moments of the estimate over all ordered groups.
3. Closed forms: means and noise of the same estimates, from q_t, μ_t, g_t and binomial laws.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import product
from math import comb, prod
from typing import NamedTuple

Parameter = tuple[str, str]  # the name of a state's logits, an action
Vector = dict[Parameter, Fraction]  # what is not there is 0
Moves = list[tuple[Fraction, Fraction, str | None]]  # probability, reward, next state or the end
States = dict[
    str, dict[str, tuple[Fraction, Moves]]
]  # of a state and an action: probability and moves
Number = Fraction | int


class Problem(NamedTuple):
    """A problem of the second mind; episodes begin in the first state and end after ``turns`` at the latest."""

    states: States
    turns: int = 9
    tied: dict[str, str] = {}  # states whose logits are those of another  # noqa: RUF012

    def parameters(self) -> list[Parameter]:
        return [(s, a) for s, actions in self.states.items() if s not in self.tied for a in actions]


class Episode(NamedTuple):
    prob: Fraction
    states: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: tuple[Fraction, ...]
    scores: tuple[Vector, ...]  # by turn
    slope: Vector  # ∇ prob, by the product rule
    returns: tuple[Fraction, ...] = ()  # R_t, discounted


Group = tuple[Episode, ...]


def add(total: Vector, vector: Vector, weight: Number = 1) -> None:
    for parameter, value in vector.items():
        total[parameter] = total.get(parameter, Fraction(0)) + weight * value


def combine(*terms: tuple[Number, Vector]) -> Vector:
    total: Vector = {}
    for weight, vector in terms:
        add(total, vector, weight)
    return {parameter: value for parameter, value in total.items() if value}


def square(vector: Vector) -> Fraction:
    return sum((value**2 for value in vector.values()), Fraction(0))


def mean(values: Iterable[Fraction]) -> Fraction:
    """The mean, and 0 of nothing: the baseline of a turn that no other episode reaches."""
    values = list(values)
    return sum(values, Fraction(0)) / max(len(values), 1)


def episodes(problem: Problem, discount: Number = 1) -> list[Episode]:
    """Every episode of a problem, each once."""

    def onwards(state: str, past: Episode) -> Iterator[Episode]:
        actions = problem.states[state]
        name = problem.tied.get(state, state)
        for action, (chance, moves) in actions.items():
            score = {(name, other): (other == action) - actions[other][0] for other in actions}
            for move, reward, then in moves:
                longer = Episode(
                    past.prob * chance * move,
                    (*past.states, state),
                    (*past.actions, action),
                    (*past.rewards, Fraction(reward)),
                    (*past.scores, score),
                    combine((chance * move, past.slope), (past.prob * chance * move, score)),
                )
                if then is None or len(longer.states) == problem.turns:
                    yield longer
                else:
                    yield from onwards(then, longer)

    start = next(iter(problem.states))
    found = onwards(start, Episode(Fraction(1), (), (), (), (), {}))
    return [
        e._replace(returns=tuple(to_go(e.rewards, t, discount) for t in range(len(e.rewards))))
        for e in found
    ]


def to_go(rewards: tuple[Fraction, ...], t: int, discount: Number = 1) -> Fraction:
    return sum(
        (Fraction(discount) ** (u - t) * rewards[u] for u in range(t, len(rewards))), Fraction(0)
    )


# ---- brute force: the advantage of turn t of episode i of a group, by definition


def others(group: Group, i: int, t: int = 0) -> list[Episode]:
    """The other episodes that reach turn t."""
    return [e for j, e in enumerate(group) if j != i and len(e.states) > t]


def reaching(group: Group, t: int) -> list[Episode]:
    return [e for e in group if len(e.states) > t]


def visits(group: Group, i: int, t: int, own: Callable[[int], bool]) -> list[Fraction]:
    """The returns of visits to this turn's state by other episodes, and by turns u of the own one for which own(u)."""
    return [
        e.returns[u]
        for j, e in enumerate(group)
        for u, state in enumerate(e.states)
        if state == group[i].states[t] and (j != i or own(u))
    ]


def summed(
    group: Group, i: int, t: int, among: Callable[[int], list[Episode]], drop: bool = False
) -> Fraction:
    terms = ((u, [e.rewards[u] for e in among(u)]) for u in range(t, len(group[i].rewards)))
    return sum((group[i].rewards[u] - mean(of) for u, of in terms if of or not drop), Fraction(0))


Scheme = Callable[[Group, int, int], Fraction]
SCHEMES: dict[str, Scheme] = {
    "none": lambda g, i, t: g[i].returns[t],
    "episode": lambda g, i, t: g[i].returns[0] - mean(e.returns[0] for e in others(g, i)),
    "episode, own": lambda g, i, t: g[i].returns[0] - mean(e.returns[0] for e in g),
    "to-go": lambda g, i, t: g[i].returns[t] - mean(e.returns[t] for e in others(g, i, t)),
    "to-go, past": lambda g, i, t: g[i].returns[0] - mean(e.returns[0] for e in others(g, i, t)),
    "to-go, 0 alone": lambda g, i, t: SCHEMES["to-go"](g, i, t) if others(g, i, t) else Fraction(0),
    "to-go, own": lambda g, i, t: g[i].returns[t] - mean(e.returns[t] for e in reaching(g, t)),
    "to-go, own, past": lambda g, i, t: (
        g[i].returns[0] - mean(e.returns[0] for e in reaching(g, t))
    ),
    "summed": lambda g, i, t: summed(g, i, t, lambda u: others(g, i, u)),
    "summed, past": lambda g, i, t: summed(g, i, 0, lambda u: others(g, i, u)),
    "summed, dropped": lambda g, i, t: summed(g, i, t, lambda u: others(g, i, u), drop=True),
    "summed, own": lambda g, i, t: summed(g, i, t, lambda u: reaching(g, u)),
    "pooled": lambda g, i, t: (
        g[i].returns[0] - mean(e.returns[0] for e in others(g, i) for _ in e.states)
    ),
    "pooled, to-go": lambda g, i, t: (
        g[i].returns[t] - mean(r for e in others(g, i) for r in e.returns)
    ),
    "pooled, own": lambda g, i, t: g[i].returns[0] - rho(g),
    "pooled, own, no past": lambda g, i, t: g[i].returns[t] - rho(g),
    "pooled, own, to-go": lambda g, i, t: g[i].returns[t] - rho_to_go(g),
    "state": lambda g, i, t: g[i].returns[t] - mean(visits(g, i, t, lambda u: False)),
    "state, own": lambda g, i, t: g[i].returns[t] - mean(visits(g, i, t, lambda u: True)),
    "state, own others": lambda g, i, t: g[i].returns[t] - mean(visits(g, i, t, lambda u: u != t)),
    "state, own earlier": lambda g, i, t: g[i].returns[t] - mean(visits(g, i, t, lambda u: u < t)),
}


def rho(group: Group) -> Fraction:
    """The mean over all turns of the group of their episodes' whole returns."""
    return mean(e.returns[0] for e in group for _ in e.states)


def rho_to_go(group: Group) -> Fraction:
    return mean(r for e in group for r in e.returns)


class Moments(NamedTuple):
    mean: Vector  # E ĝ
    squares: list[
        Fraction
    ]  # E|ĝ_t|² by turn, ĝ_t the part of the estimate with the scores of turn t
    total: Fraction  # E|ĝ|²


def moments(listed: list[Episode], scheme: Scheme, size: int, by_turn: bool = False) -> Moments:
    """First two moments of ĝ = (1/G) Σ_i Σ_t s_it A_it; ``by_turn`` divides each turn by n_t instead."""
    first: Vector = {}
    squares: dict[int, Fraction] = defaultdict(Fraction)
    total = Fraction(0)
    for group in product(listed, repeat=size):
        chance = prod(e.prob for e in group)
        whole: Vector = {}
        for t in range(max(len(e.states) for e in group)):
            part: Vector = {}
            for i, e in enumerate(group):
                if len(e.states) > t:
                    add(
                        part,
                        e.scores[t],
                        scheme(group, i, t) / (len(reaching(group, t)) if by_turn else size),
                    )
            squares[t] += chance * square(part)
            add(whole, part)
        add(first, whole, chance)
        total += chance * square(whole)
    return Moments(combine((1, first)), [squares[t] for t in sorted(squares)], total)


def group_gradient(
    listed: list[Episode], statistic: Callable[[Group], Fraction], size: int
) -> Vector:
    """∇ E[statistic of a group], by the product rule over its episodes."""
    total: Vector = {}
    for group in product(listed, repeat=size):
        value = statistic(group)
        for i, e in enumerate(group):
            add(total, e.slope, value * prod((o.prob for o in others(group, i)), start=Fraction(1)))
    return combine((1, total))


# ---- closed forms


class Turn(NamedTuple):
    """What the closed forms read of a turn: of the episodes that reach it."""

    q: Fraction
    q_slope: Vector
    mu_slope: Vector
    mu: Fraction
    g: Vector
    f: tuple[Fraction, Fraction, Fraction]
    value: Fraction  # mean of R_t given reached
    variance: Fraction


def turn(listed: list[Episode], t: int) -> Turn:
    there = [e for e in listed if len(e.states) > t]
    q = sum(e.prob for e in there)
    q_slope = combine(*((1, e.slope) for e in there))
    mu = sum(e.prob * e.rewards[t] for e in there) / q
    value = sum(e.prob * e.returns[t] for e in there) / q
    mu_slope = combine(*((e.rewards[t] / q, e.slope) for e in there), (-mu / q, q_slope))
    return Turn(
        q,
        q_slope,
        mu_slope,
        mu,
        combine(*((e.prob * e.returns[t], e.scores[t]) for e in there)),
        tuple(
            sum(e.prob * square(e.scores[t]) * (e.returns[t] - value) ** n for e in there)
            for n in range(3)
        ),
        value,
        sum(e.prob * (e.returns[t] - value) ** 2 for e in there) / q,
    )


def binomial(n: int, q: Fraction, f: Callable[[int], Fraction]) -> Fraction:
    """E f(k), k ~ Bin(n, q)."""
    return sum((comb(n, k) * q**k * (1 - q) ** (n - k) * f(k) for k in range(n + 1)), Fraction(0))


def own_weight(q: Fraction, size: int) -> Fraction:
    """w = 1 - E[1/n | i is there]."""
    return 1 - binomial(size - 1, q, lambda k: Fraction(1, k + 1))


def closed_means(listed: list[Episode], size: int) -> dict[str, Vector]:
    """Section 14's mean of each scheme; the rows of equal states are in `state_mean`."""
    turns = [turn(listed, t) for t in range(max(len(e.states) for e in listed))]
    gradient = combine(*((e.returns[0], e.slope) for e in listed))
    alone = [(1 - u.q) ** (size - 1) for u in turns]
    own = [own_weight(u.q, size) for u in turns]
    unbiased = ("none", "episode", "to-go", "to-go, past", "pooled", "pooled, to-go", "state")
    own_inside = combine(*((w, u.g) for w, u in zip(own, turns, strict=True)))
    bias = {
        name: (Fraction(-1, size), group_gradient(listed, b, size)) for name, b in POOLS.items()
    }
    return dict.fromkeys(unbiased, gradient) | {
        "episode, own": combine((Fraction(size - 1, size), gradient)),
        "to-go, 0 alone": combine(*((1 - a, u.g) for a, u in zip(alone, turns, strict=True))),
        "to-go, own": own_inside,
        "to-go, own, past": own_inside,
        "summed": combine(
            (1, gradient), *(((a - 1) * u.mu, u.q_slope) for a, u in zip(alone, turns, strict=True))
        ),
        "summed, dropped": combine(
            *(((1 - a) * u.q, u.mu_slope) for a, u in zip(alone, turns, strict=True))
        ),
        "summed, own": combine(*((w * u.q, u.mu_slope) for w, u in zip(own, turns, strict=True))),
        **{name: combine((1, gradient), term) for name, term in bias.items()},
    }


POOLS = {"pooled, own": rho, "pooled, own, no past": rho, "pooled, own, to-go": rho_to_go}


def by_turn_mean(listed: list[Episode], size: int) -> Vector:
    """The mean of "to-go" where a turn's sum is divided by n_t instead of G."""
    turns = [turn(listed, t) for t in range(max(len(e.states) for e in listed))]
    return combine(*(((1 - (1 - u.q) ** size) / u.q, u.g) for u in turns))


def state_mean(listed: list[Episode], size: int) -> Vector:
    """Σ_x w_x g_x, the mean of "state, own" where no state is visited twice in an episode."""
    total: Vector = {}
    for state in {x for e in listed for x in e.states}:
        q = sum((e.prob for e in listed if state in e.states), Fraction(0))
        for e in listed:
            for x, score, back in zip(e.states, e.scores, e.returns, strict=True):
                add(total, score, own_weight(q, size) * e.prob * back * (x == state))
    return combine((1, total))


def closed_noise(listed: list[Episode], t: int, size: int) -> dict[str, Fraction]:
    """G E|ĝ_t|² by the table of section 14; "episode" where rewards come at the end only."""
    first, here = turn(listed, 0), turn(listed, t)
    (f0, f1, f2), v, q = here.f, here.value, here.q
    alone, pairs = (1 - q) ** (size - 1), (size - 1) * square(here.g)
    spread = here.variance * share_alive(q, size)
    again = binomial(size - 2, q, lambda k: Fraction(1, (k + 1) ** 2))
    off = v - first.value
    return {
        "none": f2 + 2 * v * f1 + v**2 * f0 + pairs,
        "to-go": f2 + 2 * v * alone * f1 + f0 * (spread + v**2 * alone) + pairs * (1 + again),
        "episode": f2
        + 2 * off * f1
        + f0 * (first.variance / (size - 1) + off**2)
        + pairs * (1 + Fraction(1, (size - 1) ** 2)),
    }


def share_alive(q: Fraction, size: int) -> Fraction:
    """E[1/k; k ≥ 1], k ~ Bin(G - 1, q)."""
    return binomial(size - 1, q, lambda k: Fraction(1, k) if k else Fraction(0))


def rule(listed: list[Episode], t: int, size: int) -> dict[str, bool]:
    """Whether the others of the turn make a better baseline than none, and than the episode's, by the rule."""
    first, here = turn(listed, 0), turn(listed, t)
    alive, alone = share_alive(here.q, size), (1 - here.q) ** (size - 1)
    per_turn = here.variance * alive + here.value**2 * alone
    return {
        "none": here.value**2 * (1 - alone) > here.variance * alive,
        "episode": per_turn < first.variance / (size - 1) + (here.value - first.value) ** 2,
    }


# ---- problems


def problem(text: str, turns: int = 9, **tied: str) -> Problem:
    """A problem from lines "state: action p = chance reward next, chance reward next; action p = ..."."""
    states: States = {}
    for line in text.strip().splitlines():
        name, rest = line.split(":")
        states[name.strip()] = {}
        for part in rest.split(";"):
            (action, p), moves = part.split("=")[0].split(), part.split("=")[1]
            rows = [move.split() for move in moves.split(",")]
            ways: Moves = [
                (Fraction(c), Fraction(r), then[0] if then else None) for c, r, *then in rows
            ]
            states[name.strip()][action] = (Fraction(p), ways)
    return Problem(states, turns, tied)


PROBLEMS = {
    # answer now, or pay for a tool that answers better at the next turn
    "tool": problem("""
        ask: answer 3/5 = 3/10 1, 7/10 0; call 2/5 = 1 -1/10 read
        read: trust 3/4 = 9/10 1, 1/10 0; doubt 1/4 = 1/5 1, 4/5 0"""),
    "weather": problem("""
        look: out 1 = 1/2 0 good, 1/2 0 bad
        good: go 1/2 = 1 0 paid; stay 1/2 = 1 0
        bad: go 1/2 = 1 0 little; stay 1/2 = 1 0
        paid: take 1 = 1 3
        little: take 1 = 1 1"""),
    "meets": problem("""
        a: left 1/3 = 1 1 b; right 2/3 = 1/2 0 c, 1/2 -2
        b: left 1/4 = 1 0 d; right 3/4 = 1 2
        c: left 2/5 = 1 -1 d; right 3/5 = 1 0 b
        d: left 1/2 = 1 3; right 1/2 = 1 -1"""),
    "again": problem(
        """
        a: go 2/3 = 1 1 a; stop 1/3 = 1/2 2, 1/2 -1 a""",
        turns=3,
    ),
    "returns": problem(
        """
        a: go 1/3 = 3/4 0 b, 1/4 2; stop 2/3 = 1 1
        b: back 1/2 = 1 -1 a; end 1/2 = 1 4""",
        turns=4,
    ),
    # two turns with the same logits: g = (2, -5/2), q = (1, 1/2)
    "opposed": problem(
        """
        a: go 1/2 = 1 8 b; stop 1/2 = 1 0
        b: go 1/2 = 1 -10; stop 1/2 = 1 10""",
        b="a",
    ),
}


def random_problem(seed: int, most: int = 9) -> Problem:
    """A problem from a seed, of 4 to ``most`` episodes, with rewards from -3 to 3 at any turn."""
    draw = random.Random(seed)
    names = "abcd"
    while True:
        states: States = {}
        for place, name in enumerate(names):
            p = Fraction(draw.randint(1, 5), 6)
            states[name] = {}
            for action, chance in (("l", p), ("r", 1 - p)):
                split = draw.choice([Fraction(1), Fraction(draw.randint(1, 3), 4)])
                states[name][action] = (
                    chance,
                    [
                        (
                            share,
                            Fraction(draw.randint(-3, 3)),
                            draw.choice([None, *names[place + 1 :]]),
                        )
                        for share in (split, 1 - split)
                        if share
                    ],
                )
        found = episodes(Problem(states))
        if 4 <= len(found) <= most and max(len(e.states) for e in found) > 2:
            return Problem(states)
