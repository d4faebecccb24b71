"""Credit over turns by a second mind: brute force over ordered groups of episodes, in exact fractions.

Nothing here is imported from the library.

1. Problems: states, actions with rational probabilities, moves; every episode with the scores of its turns.
2. Brute force: each scheme's advantage from its definition, and the estimate's first two moments.
3. What closed forms read: q_t, V_t, the variance of a return, and binomial laws.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product
from math import comb, log, prod
from typing import Any, NamedTuple

import numpy as np

ZERO, ONE = Fraction(0), Fraction(1)
Vector = np.ndarray[Any, Any]  # of Fractions
Moves = list[tuple[Fraction, Fraction, str | None]]  # probability, reward, next state or the end


class Problem(NamedTuple):
    """The probability of each action in a state, and where it leads. Episodes end after ``turns``."""

    states: dict[str, dict[str, tuple[Fraction, Moves]]]
    turns: int | None = None


class Episode(NamedTuple):
    states: Sequence[object]
    rewards: Sequence[Fraction]
    discount: Fraction = ONE
    prob: Fraction = ONE
    scores: Sequence[Vector] = ()  # of each turn, ∇ log π in the logits
    slope: Any = 0  # ∇ prob, by the product rule

    def back(self, t: int) -> Fraction:
        """R_t."""
        total = ZERO
        for reward in reversed(self.rewards[t:]):
            total = reward + self.discount * total
        return total


Group = Sequence[Episode]


def mean(values: Iterable[Fraction]) -> Fraction:
    """The mean, and 0 of nothing: the baseline of a turn that no other episode reaches."""
    values = list(values)
    return sum(values, ZERO) / max(len(values), 1)


def episodes(problem: Problem, discount: Fraction = ONE, start: str | None = None) -> list[Episode]:
    """Every episode, each once; they begin in the first state unless another is named."""
    policy = {(x, a): row[0] for x, actions in problem.states.items() for a, row in actions.items()}
    found = []

    def onwards(state: str, past: Episode) -> None:
        for action, (chance, moves) in problem.states[state].items():
            score = np.array([(x == state) * ((a == action) - p) for (x, a), p in policy.items()])
            for move, reward, then in moves:
                likely = past.prob * chance * move
                states, rewards = (*past.states, state), (*past.rewards, reward)
                slope, scores = past.slope * chance * move + likely * score, (*past.scores, score)
                longer = Episode(states, rewards, discount, likely, scores, slope)
                if then is None or len(longer.states) == problem.turns:
                    found.append(longer)
                else:
                    onwards(then, longer)

    onwards(start or next(iter(problem.states)), Episode((), ()))
    return found


# ---- brute force: the advantage of turn t of episode i, by definition


def there(g: Group, t: int, but: int | None = None) -> list[Episode]:
    """The episodes that reach turn t, without one of them."""
    return [e for j, e in enumerate(g) if j != but and len(e.states) > t]


def pool(of: Iterable[Episode]) -> Fraction:
    """The mean over all turns, each a sample of its episode's whole return."""
    return mean(e.back(0) for e in of for _ in e.states)


def visits(g: Group, i: int, t: int, own: bool) -> list[Fraction]:
    """Returns from an equal state: of other episodes, and of the own one."""
    kept = [(e, u) for j, e in enumerate(g) for u in range(len(e.states)) if j != i or own]
    return [e.back(u) for e, u in kept if e.states[u] == g[i].states[t]]


def summed(g: Group, i: int, t: int, but: int | None, drop: bool = False) -> Fraction:
    """Σ_{u ≥ t} of r_u less its mean among those that reach u; 0, if dropped, where none does."""
    terms = []
    for u, reward in enumerate(g[i].rewards):
        among = [e.rewards[u] for e in there(g, u, but)]
        terms.append(ZERO if drop and not among else reward - mean(among))
    return g[i]._replace(rewards=terms).back(t)


Scheme = Callable[[Group, int, int], Fraction]
SCHEMES: dict[str, Scheme] = {
    "none": lambda g, i, t: g[i].back(t),
    "episode": lambda g, i, t: g[i].back(0) - mean(e.back(0) for e in there(g, 0, i)),
    "episode-mean": lambda g, i, t: g[i].back(0) - mean(e.back(0) for e in there(g, 0)),
    "to-go": lambda g, i, t: g[i].back(t) - mean(e.back(t) for e in there(g, t, i)),
    "to-go-mean": lambda g, i, t: g[i].back(t) - mean(e.back(t) for e in there(g, t)),
    "summed": lambda g, i, t: summed(g, i, t, i),
    "summed, dropped": lambda g, i, t: summed(g, i, t, i, drop=True),
    "summed-mean": lambda g, i, t: summed(g, i, t, None),
    "pooled": lambda g, i, t: g[i].back(0) - pool(there(g, 0, i)),
    "pooled-mean": lambda g, i, t: g[i].back(0) - pool(g),
    "state": lambda g, i, t: g[i].back(t) - mean(visits(g, i, t, own=False)),
    "state-mean": lambda g, i, t: g[i].back(t) - mean(visits(g, i, t, own=True)),
}


def dropped(scheme: str, others: Callable[[Group, int, int], Sequence[object]]) -> Scheme:
    """A scheme whose advantage is 0 where there is no other to compare with."""
    return lambda g, i, t: SCHEMES[scheme](g, i, t) if others(g, i, t) else ZERO


OTHERS = {
    "episode": lambda g, i, t: there(g, 0, i),
    "to-go": lambda g, i, t: there(g, t, i),
    "pooled": lambda g, i, t: there(g, 0, i),
    "state": lambda g, i, t: visits(g, i, t, own=False),
}
SCHEMES |= {f"{scheme}, dropped": dropped(scheme, others) for scheme, others in OTHERS.items()}


def named(scheme: str, lone: str = "reward", by_state: bool = False) -> str:
    """The name here of what the library calls by these."""
    here = scheme.replace("to-go", "state") if by_state else scheme
    return here if lone == "reward" or here.endswith("-mean") else f"{here}, dropped"


class Moments(NamedTuple):
    mean: Vector  # E ĝ
    squares: list[Fraction]  # E|ĝ_t|², ĝ_t the part with the scores of turn t
    total: Fraction  # E|ĝ|²


def moments(listed: list[Episode], scheme: Scheme, size: int) -> Moments:
    """Of ĝ = (1/G) Σ_i Σ_t s_it A_it."""
    found = Moments(ZERO, [ZERO] * max(len(e.states) for e in listed), ZERO)
    for g in product(listed, repeat=size):
        chance, whole = prod(e.prob for e in g), ZERO * listed[0].scores[0]
        for t in range(max(len(e.states) for e in g)):
            terms = [e.scores[t] * scheme(g, i, t) for i, e in enumerate(g) if len(e.states) > t]
            part = sum(terms) / size
            found.squares[t] += chance * (part @ part)
            whole += part
        found = Moments(
            found.mean + chance * whole, found.squares, found.total + chance * (whole @ whole)
        )
    return found


# ---- closed forms


class Turn:
    """What closed forms read of a turn: the chance q to reach it, and moments of R_t given that it is."""

    def __init__(self, listed: list[Episode], t: int) -> None:
        of = there(listed, t)
        self.q = sum(e.prob for e in of)
        self.value = sum(e.prob * e.back(t) for e in of) / self.q
        self.variance = sum(e.prob * (e.back(t) - self.value) ** 2 for e in of) / self.q


def binomial(n: int, q: Fraction, f: Callable[[int], Fraction]) -> Fraction:
    """E f(k), k ~ Bin(n, q)."""
    return sum((comb(n, k) * q**k * (1 - q) ** (n - k) * f(k) for k in range(n + 1)), ZERO)


def own_pools(listed: list[Episode], size: int) -> list[Fraction]:
    """E[ρ | the first episode is this one], ρ the group's mean over turns, by the law of the others' sums."""
    sums = {(0, ZERO): ONE}
    for _ in range(size - 1):
        longer: dict[tuple[int, Fraction], Fraction] = {}
        for ((turns, total), chance), e in product(sums.items(), listed):
            at = turns + len(e.states), total + len(e.states) * e.back(0)
            longer[at] = longer.get(at, ZERO) + chance * e.prob
        sums = longer
    return [
        sum(
            chance * (total + len(e.states) * e.back(0)) / max(turns + len(e.states), 1)
            for (turns, total), chance in sums.items()
        )
        for e in listed
    ]


# ---- problems


def problem(text: str, turns: int | None = None) -> Problem:
    """From lines "state: action p = chance reward next, chance reward; action p = ..."."""
    states: dict[str, dict[str, tuple[Fraction, Moves]]] = {}
    for line in text.strip().splitlines():
        name, actions = line.strip().split(": ")
        states[name] = {}
        for action, moves in (part.split(" = ") for part in actions.split("; ")):
            label, p = action.split()
            rows = [move.split() for move in moves.split(", ")]
            ways: Moves = [(Fraction(c), Fraction(r), to[0] if to else None) for c, r, *to in rows]
            states[name][label] = Fraction(p), ways
    return Problem(states, turns)


def random_problem(seed: int) -> Problem:
    """A problem of 4 to 8 episodes of up to 4 turns, with rewards from -3 to 3 at any turn."""
    draw = random.Random(seed)

    def moves(later: str) -> str:
        parts = draw.choice([(4,), (1, 3), (2, 2)])
        return ", ".join(f"{n}/4 {draw.randint(-3, 3)} {draw.choice(['', *later])}" for n in parts)

    while True:
        lines = []
        for x, p in enumerate(draw.choices(range(1, 6), k=4)):
            later = "bcd"[x:]
            lines.append(f"{'abcd'[x]}: l {p}/6 = {moves(later)}; r {6 - p}/6 = {moves(later)}")
        listed = episodes(found := problem("\n".join(lines)))
        if 4 <= len(listed) <= 8 and max(len(e.states) for e in listed) > 2:
            return found


TEXTS = {
    "tool": """question: answer 3/5 = 3/10 1, 7/10 0; tool 2/5 = 1 0 informed
        informed: right 9/10 = 1 1; wrong 1/10 = 1 0""",
    "weather": """dawn: leave 1 = 1/2 0 good, 1/2 0 bad
        good: on 1/2 = 1 0 paid3; stop 1/2 = 1 0
        bad: on 1/2 = 1 0 paid1; stop 1/2 = 1 0
        paid3: rest 1 = 1 3
        paid1: rest 1 = 1 1""",
    "meets": """a: left 1/3 = 1 1 b; right 2/3 = 1/2 0 c, 1/2 -2
        b: left 1/4 = 1 0 d; right 3/4 = 1 2
        c: left 2/5 = 1 -1 d; right 3/5 = 1 0 b
        d: left 1/2 = 1 3; right 1/2 = 1 -1""",
    "again": """a: go 2/3 = 1 1 a; stop 1/3 = 1/2 2, 1/2 -1 b
        b: end 1 = 1 4""",
    "opposed": "a: go 1/2 = 1 7/4 a; stop 1/2 = 1 15/4",
}
LOOPS = {"again": 3, "opposed": 2}  # they end after so many turns
PROBLEMS = {name: problem(text, LOOPS.get(name)) for name, text in TEXTS.items()} | {
    f"random {seed}": random_problem(seed) for seed in range(3)
}


def mapping(problem: Problem, start: dict[str, float] | None = None) -> dict[str, Any]:
    """A problem as its file holds it, with logits log π; it begins in its first state unless told."""
    states = {
        x: {
            a: {
                "logit": log(p),
                "moves": [{"prob": float(c), "reward": float(r), "to": to} for c, r, to in moves],
            }
            for a, (p, moves) in actions.items()
        }
        for x, actions in problem.states.items()
    }
    begins = start or {next(iter(states)): 1}
    return {"start": begins, "states": states} | (
        {"max_turns": problem.turns} if problem.turns else {}
    )
