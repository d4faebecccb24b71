"""Credit over turns: closed forms and enumeration against a second mind's brute force in fractions."""

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support import independent_turns as ind
from tests.support.refusals import refusals
from ustat_pg.engines import enumerate_turns
from ustat_pg.estimators import TURN_SCHEMES
from ustat_pg.moments.episodes import Episodes
from ustat_pg.predictions import turn_mean, turn_noise
from ustat_pg.problems import episode_problem, load_episodes

TOOL = load_episodes("ustat:tool")
#: (problem, group size) of at most so many ordered groups.
CASES = [
    (name, size)
    for name, size in product(ind.PROBLEMS, (2, 3, 4))
    if len(ind.episodes(ind.PROBLEMS[name])) ** size <= 100
]
cases = pytest.mark.parametrize(("name", "size"), CASES)


@cache
def listed(name, discount=1):
    return ind.episodes(ind.PROBLEMS[name], discount)


@cache
def brute(name, scheme, size, discount=1):
    return ind.moments(listed(name, discount), ind.SCHEMES[scheme], size)


@cache
def library(name):
    return episode_problem(ind.mapping(ind.PROBLEMS[name]))


def read(text):
    return episode_problem(ind.mapping(ind.problem(text)))


def close(found, wanted, said=""):
    np.testing.assert_allclose(
        found, np.array(wanted, dtype=float), rtol=0, atol=1e-12, err_msg=said
    )


def without_baseline(rewards, reached):
    return np.cumsum(rewards[..., ::-1], axis=-1)[..., ::-1] * reached


LONE = ("reward", "zero")
BY_STATE = ("to-go", "to-go-mean")
NOISE = ("none", "to-go", "episode", "pooled-mean")


@cases
def test_means_and_noise_are_the_brute_force(name, size):
    for scheme, lone in product(TURN_SCHEMES, LONE):
        found = turn_mean(library(name), scheme, size, lone=lone)
        close(found.mean, brute(name, ind.named(scheme, lone), size).mean, scheme)
        listed = enumerate_turns(library(name), scheme, size, lone=lone)
        close(found.by_turn, listed.by_turn, scheme)
    for scheme in NOISE:
        close(turn_noise(library(name), scheme, size), brute(name, scheme, size).squares, scheme)


@cases
def test_enumeration_is_the_brute_force(name, size):
    gradient = sum(e.back(0) * e.slope for e in listed(name))
    calls = [(scheme, lone, False) for scheme, lone in product(TURN_SCHEMES, LONE)]
    calls += [(scheme, lone, True) for scheme, lone in product(BY_STATE, LONE)]
    ways = {
        ind.named(scheme, lone, by_state): (scheme, {"lone": lone, "by_state": by_state})
        for scheme, lone, by_state in calls
    }
    for mine, (scheme, options) in (ways | {"none": (without_baseline, {})}).items():
        wanted = brute(name, mine, size)
        found = enumerate_turns(library(name), scheme, size, **options)
        close(found.mean, wanted.mean, mine)
        close(found.squared_bias, (wanted.mean - gradient) @ (wanted.mean - gradient), mine)
        close(found.turn_squares, wanted.squares, mine)
        close(found.mse, wanted.total + (gradient - 2 * wanted.mean) @ gradient, mine)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_means_are_the_brute_force_where_episodes_may_be_absent(size):
    """One of three has no turn; alone, an episode has no other to be compared with."""
    third = Fraction(1, 3)
    of = [e._replace(prob=2 * third * e.prob) for e in listed("tool")]
    of.append(ind.Episode((), (), prob=third))
    whole = library("tool").episodes
    missing = {"rewards": 0, "reached": False, "states": -1, "scores": 0}
    rows = {
        name: np.concatenate([array := getattr(whole, name), np.full_like(array[:1], fill)])
        for name, fill in missing.items()
    }
    starts, probs = whole.starts[[*range(len(whole.starts)), 0]], [*whole.probs * 2 / 3, 1 / 3]
    absent = Episodes(np.array(probs), starts, **rows)
    for scheme, lone in product(TURN_SCHEMES, LONE):
        wanted = ind.moments(of, ind.SCHEMES[ind.named(scheme, lone)], size)
        close(turn_mean(absent, scheme, size, lone=lone).mean, wanted.mean, scheme)
        close(enumerate_turns(absent, scheme, size, lone=lone).mean, wanted.mean, scheme)
        if scheme in NOISE and lone == "reward":
            close(turn_noise(absent, scheme, size), wanted.squares, scheme)
        if scheme in BY_STATE:
            mine = ind.SCHEMES[ind.named(scheme, lone, True)]
            found = enumerate_turns(absent, scheme, size, lone=lone, by_state=True).mean
            close(found, ind.moments(of, mine, size).mean, scheme)


@pytest.mark.parametrize(("name", "size"), [("tool", 1), ("tool", 12), ("again", 6)])
def test_the_pooled_mean_of_large_groups(name, size):
    """By the law of the other episodes' sums, in fractions."""
    pools = zip(listed(name), ind.own_pools(listed(name), size), strict=True)
    push = sum(e.prob * pool * sum(e.scores) for e, pool in pools)
    gradient = sum(e.back(0) * e.slope for e in listed(name))
    close(turn_mean(library(name), "pooled-mean", size).mean, gradient - push)


@pytest.mark.parametrize(("name", "size"), [("tool", 12), ("opposed", 30)])
def test_the_noise_of_the_pooled_mean_of_large_groups(name, size):
    found = enumerate_turns(library(name), "pooled-mean", size).turn_squares
    close(turn_noise(library(name), "pooled-mean", size), found)


@pytest.mark.parametrize("name", ["meets", "again"])
def test_the_pooled_mean_where_groups_are_very_large(name):
    """Its bias by G tends to ∇(E[T R]/E[T]), and halves with 1/G what is left."""
    of = listed(name)
    lengths = np.array([len(e.states) for e in of])
    paid = lengths * [e.back(0) for e in of]
    probs, slopes = np.array([e.prob for e in of]), np.array([e.slope for e in of])
    e_t, e_tr = probs @ lengths, probs @ paid
    limit = paid @ slopes / e_t - e_tr * (lengths @ slopes) / e_t**2
    gradient = library(name).gradient()
    sizes = 500_000, 1_000_000
    off = [(gradient - turn_mean(library(name), "pooled-mean", g).mean) * g for g in sizes]
    off = np.array(off - limit, dtype=float)
    assert np.abs(off).max() < 1e-4
    np.testing.assert_allclose(off[1], off[0] / 2, atol=2e-9)


@pytest.mark.parametrize("discount", [Fraction(1, 2), 0])
@pytest.mark.parametrize(("name", "size"), [("tool", 3), ("meets", 2), ("again", 2)])
def test_returns_may_be_discounted(name, size, discount):
    for scheme in TURN_SCHEMES:
        wanted, options = brute(name, scheme, size, discount).mean, {"discount": float(discount)}
        found = turn_mean(library(name), scheme, size, **options)
        close(found.mean, wanted, scheme)
        close(enumerate_turns(library(name), scheme, size, **options).mean, wanted, scheme)
        assert "discounted" in found.climbs
        assert "discounted" not in turn_mean(library(name), scheme, size).climbs


def test_prompts_are_averaged_by_their_chances():
    parts = [ind.episodes(ind.PROBLEMS["meets"], start=start) for start in "ab"]
    problem = episode_problem(ind.mapping(ind.PROBLEMS["meets"], {"a": 0.25, "b": 0.75}))
    for scheme in TURN_SCHEMES:
        first, second = (ind.moments(part, ind.SCHEMES[scheme], 2) for part in parts)
        wanted = (first.mean + 3 * second.mean) / 4
        close(turn_mean(problem, scheme, 2).mean, wanted, scheme)
        close(enumerate_turns(problem, scheme, 2).mean, wanted, scheme)
        if scheme == "to-go":
            shorter = [*second.squares, *[0] * (len(first.squares) - len(second.squares))]
            noise = [(a + 3 * b) / 4 for a, b in zip(first.squares, shorter, strict=True)]
            close(turn_noise(problem.episodes, scheme, 2), noise)


def test_words_and_multiples():
    found = {scheme: turn_mean(TOOL, scheme, 4) for scheme in TURN_SCHEMES}
    known = {"episode": 1, "episode-mean": 0.75, "to-go": 1, "pooled": 1}
    assert {scheme: row.multiple for scheme, row in found.items()} == dict.fromkeys(found) | known
    assert str(found["episode-mean"]).startswith("episode-mean, G = 4: 0.75 ∇J. It climbs J, the")
    assert "no multiple of ∇J" in str(found["summed"])
    # Where every turn is always reached, own returns inside weigh all turns alike.
    even = read("a: l 1/3 = 1 0 b; r 2/3 = 1 1 b\nb: l 1/4 = 1 0; r 3/4 = 1 1")
    assert turn_mean(even, "to-go-mean", 4).multiple == 0.75
    # There is nothing to be a multiple of where rounding alone makes a gradient.
    flat = turn_mean(read("a: l 1/3 = 1 1/3; r 2/3 = 1 1/3 b\nb: l 1 = 1 0"), "to-go", 2)
    assert flat.multiple is flat.cosine is None
    # What is small is none of it: weights that differ by 10⁻⁵, and a gradient of 10⁻⁶.
    rare = read("a: l 1/100000 = 1 1; r 99999/100000 = 1 1 b\nb: l 1/4 = 1 0; r 3/4 = 1 1")
    near = turn_mean(rare, "to-go-mean", 2)
    assert near.multiple is None
    assert 0.999 < near.cosine < 1
    faint = read("a: l 1/3 = 1 1; r 2/3 = 1 1000001/1000000")
    found = turn_mean(faint, "episode-mean", 4)
    assert found.multiple == pytest.approx(0.75, rel=1e-9)
    assert found.cosine == pytest.approx(1.0)
    # Without others there is no baseline, or nothing.
    for scheme in ("episode", "to-go", "pooled", "summed"):
        close(turn_mean(TOOL, scheme, 1).mean, TOOL.gradient(), scheme)
        nothing = turn_mean(TOOL, scheme, 1, lone="zero")
        assert (nothing.multiple, nothing.cosine) == (0, None)
        assert nothing.climbs.startswith("nothing")
    assert turn_mean(TOOL, "to-go", 2, lone="zero").climbs.startswith("each turn's part of J")
    assert "nothing" not in turn_mean(TOOL, "episode", 2, lone="zero").climbs
    # What is left of large parts that nearly cancel is a gradient still.
    near = read("a: l 1/3 = 1 1; r 2/3 = 1 100001/100000")
    assert turn_mean(near, "episode-mean", 4).multiple == 0.75
    assert turn_mean(near, "to-go", 4).cosine == pytest.approx(1)
    close(turn_noise(TOOL, "to-go", 1), turn_noise(TOOL, "none", 1))


def test_small_rewards_are_told_apart_as_large_ones():
    """ρ of rewards by 10⁻¹³ is ρ by 10⁻¹³."""
    mapping = ind.mapping(ind.PROBLEMS["meets"])
    for state in mapping["states"].values():
        for action in state.values():
            for move in action["moves"]:
                move["reward"] *= 1e-13
    found = turn_mean(episode_problem(mapping), "pooled-mean", 2).mean
    close(found * 1e13, brute("meets", "pooled-mean", 2).mean)


def test_what_pushes_the_wrong_way():
    """In the chance π of a first action: ∂/∂π = ∂/∂θ / (π (1 - π))."""
    weather = load_episodes("ustat:weather")
    for problem, states, spread, wanted in (
        (TOOL, ("question", "informed"), [0.24, 0.09], [[-0.6, 0.4], [0.3, 0.4]]),
        (weather, ("good", "bad"), [0.25, 0.25], [[1.5, 0.5], [0.5, -0.5]]),
    ):
        places = [problem.parameters(state).start for state in states]
        means = problem.gradient(), turn_mean(problem, "summed", 400).mean
        close([mean[places] / spread for mean in means], wanted)
    assert turn_mean(library("opposed"), "to-go-mean", 2).cosine == pytest.approx(-1)
    # Right alike with a tool, which takes a turn, or without: the deviation over all turns pushes.
    for rate, push in (
        (Fraction(3, 10), -0.00799),
        (Fraction(1, 2), 0),
        (Fraction(7, 10), 0.00799),
    ):
        ways = f"{rate} 1, {1 - rate} 0"
        problem = read(f"ask: call 1/2 = 1 0 read; say 1/2 = {ways}\nread: say 1 = {ways}")
        found = enumerate_turns(problem, "pooled-mean", 4, ddof=1)
        assert found.mean[0] == pytest.approx(push, abs=5e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 9])
@pytest.mark.parametrize(("q", "value"), [*product((1, 2, 5), (-3, -1, 0, 1, 2))])
def test_the_rule_names_the_better_baseline_where_its_condition_holds(size, q, value):
    """A last turn of uniform actions that do not matter: ‖s‖² is constant and gₜ = 0."""
    moves = f"1/4 {value + 3}, 3/4 {value - 1}"
    first = f"a: go {q}/6 = 1 0 b; stop {6 - q}/6 = 1/2 2, 1/2 -1"
    text = f"{first}\nb: l 1/2 = {moves}; r 1/2 = {moves}"
    whole, here = (ind.Turn(ind.episodes(ind.problem(text)), t) for t in (0, 1))
    noise = {
        scheme: turn_noise(read(text), scheme, size)[1] for scheme in ("to-go", "none", "episode")
    }
    alone = (1 - here.q) ** (size - 1)
    alive = ind.binomial(size - 1, here.q, lambda k: Fraction(k > 0, max(k, 1)))
    of_turn = here.variance * alive + here.value**2 * alone
    of_episode = whole.variance / (size - 1) + (here.value - whole.value) ** 2
    gaps = {
        "none": here.value**2 / here.variance - alive / (1 - alone),
        "episode": of_episode - of_turn,
    }
    for scheme, gap in gaps.items():
        assert np.sign(np.round(noise[scheme] - noise["to-go"], 14)) == np.sign(gap), scheme


test_what_cannot_be_predicted_is_refused = refusals(
    (lambda: turn_mean(TOOL, "togo", 2), "scheme 'togo' is unknown, did you mean to-go"),
    (lambda: turn_mean(TOOL, "to-go", 0), "group_size is 0: it must be a whole number"),
    (lambda: turn_mean(TOOL, "to-go", 2, discount=-1), "discount is -1.0: it must be at least 0"),
    (lambda: turn_mean(TOOL.bandit(), "to-go", 2), "problem is a SoftmaxBandit: it must be an"),
    (
        lambda: turn_noise(TOOL, "summed", 2),
        "scheme 'summed' is unknown: choose one of none, to-go",
    ),
    (lambda: turn_noise(TOOL, "episode", 0), "group_size is 0: .* of at least 1"),
    (lambda: enumerate_turns(TOOL, "summed", 2, by_state=True), "'summed' does not take them"),
    (lambda: enumerate_turns(TOOL, "summed", 300), "groups of 300, more than 1,000,000: take a"),
)
