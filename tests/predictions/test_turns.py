"""Credit over turns: closed forms and enumeration against a second mind's brute force in fractions."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from tests.support import independent_turns as ind
from tests.support.refusals import refusals
from ustat_pg.engines import enumerate_turns
from ustat_pg.estimators import TURN_SCHEMES, turns
from ustat_pg.predictions import turn_mean, turn_noise
from ustat_pg.problems import episode_problem, load_episodes

HALF = Fraction(1, 2)
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


def close(found, wanted, **options):
    np.testing.assert_allclose(found, np.array(wanted, dtype=float), rtol=0, atol=1e-12, **options)


@cases
def test_the_second_minds_closed_forms_are_its_brute_force(name, size):
    """To the last digit: every fraction is equal."""
    for scheme, mean in ind.closed_means(listed(name), size).items():
        found = brute(name, scheme, size).mean if scheme in ind.SCHEMES else by_turn(name, size)
        assert list(found) == list(mean), scheme
    at_end = all(not any(e.rewards[:-1]) for e in listed(name))
    for t in range(max(len(e.states) for e in listed(name))):
        for scheme, noise in ind.closed_noise(listed(name), t, size).items():
            if at_end or scheme != "episode":
                assert size * brute(name, scheme, size).squares[t] == noise, (scheme, t)


def by_turn(name, size):
    return ind.moments(listed(name), ind.SCHEMES["to-go"], size, by_turn=True).mean


@cases
def test_means_and_noise_are_the_brute_force(name, size):
    problem = library(name)
    for scheme in TURN_SCHEMES:
        close(turn_mean(problem, scheme, size).mean, brute(name, scheme, size).mean, err_msg=scheme)
    for scheme in ("none", "to-go", "episode"):
        close(turn_noise(problem, scheme, size), brute(name, scheme, size).squares, err_msg=scheme)


@cases
def test_enumeration_is_the_brute_force(name, size):
    problem, gradient = library(name), sum(e.back(0) * e.slope for e in listed(name))
    calls = [(scheme, scheme, {}) for scheme in TURN_SCHEMES]
    calls += [
        (scheme.replace("to-go", "state"), scheme, {"by_state": True})
        for scheme in ("to-go", "to-go-mean")
    ]
    calls += [
        (
            "none",
            lambda rewards, reached: np.cumsum(rewards[..., ::-1], -1)[..., ::-1] * reached,
            {},
        )
    ]
    for mine, scheme, options in calls:
        wanted, found = brute(name, mine, size), enumerate_turns(problem, scheme, size, **options)
        bias = wanted.mean - gradient
        close(found.mean, wanted.mean, err_msg=mine)
        close(found.squared_bias, bias @ bias)
        close(found.turn_squares, wanted.squares, err_msg=mine)
        close(
            found.mse, wanted.total - 2 * wanted.mean @ gradient + gradient @ gradient, err_msg=mine
        )


@pytest.mark.parametrize("discount", [HALF, 0])
@pytest.mark.parametrize(("name", "size"), [("tool", 3), ("meets", 2), ("again", 2)])
def test_returns_may_be_discounted(name, size, discount):
    problem = library(name)
    for scheme in TURN_SCHEMES:
        wanted = brute(name, scheme, size, discount).mean
        found = turn_mean(problem, scheme, size, discount=float(discount))
        close(found.mean, wanted, err_msg=scheme)
        close(enumerate_turns(problem, scheme, size, discount=float(discount)).mean, wanted)
        assert "discounted" in found.climbs
        assert "discounted" not in turn_mean(problem, scheme, size).climbs


def test_prompts_are_averaged_by_their_chances():
    parts = [ind.episodes(ind.PROBLEMS["meets"], start=start) for start in "ab"]
    problem = episode_problem(ind.mapping(ind.PROBLEMS["meets"], {"a": 0.25, "b": 0.75}))
    for scheme in TURN_SCHEMES:
        means = [ind.moments(part, ind.SCHEMES[scheme], 2).mean.astype(float) for part in parts]
        wanted = 0.25 * means[0] + 0.75 * means[1]
        close(turn_mean(problem, scheme, 2).mean, wanted, err_msg=scheme)
        close(enumerate_turns(problem, scheme, 2).mean, wanted, err_msg=scheme)
    squares = [ind.moments(part, ind.SCHEMES["to-go"], 2).squares for part in parts]
    wanted = [a / 4 + 3 * b / 4 for a, b in zip(squares[0], [*squares[1], 0, 0], strict=False)]
    close(turn_noise(problem, "to-go", 2), wanted)
    assert turn_mean(problem.episodes, "summed", 2).multiple is None


def test_words_and_multiples():
    tool = load_episodes("ustat:tool")
    found = {scheme: turn_mean(tool, scheme, 4) for scheme in TURN_SCHEMES}
    multiples = {scheme: row.multiple for scheme, row in found.items()}
    assert multiples == dict.fromkeys(TURN_SCHEMES) | {
        "episode": 1,
        "to-go": 1,
        "pooled": 1,
        "episode-mean": 0.75,
    }
    assert str(found["episode-mean"]).startswith(
        "episode-mean, G = 4: 0.75 ∇J. It climbs J, the expected"
    )
    assert "no multiple of ∇J" in str(found["summed"])
    # Where every turn is always reached, own returns inside weigh all turns alike.
    even = ind.problem("a: l 1/3 = 1 0 b; r 2/3 = 1 1 b\nb: l 1/4 = 1 0; r 3/4 = 1 1")
    assert turn_mean(episode_problem(ind.mapping(even)), "to-go-mean", 4).multiple == 0.75
    # No gradient: there is nothing to be a multiple of.
    flat = episode_problem(
        ind.mapping(ind.problem("a: l 1/3 = 1 1/3; r 2/3 = 1 1/3 b\nb: l 1 = 1 0"))
    )
    assert turn_mean(flat, "to-go", 2).multiple is turn_mean(flat, "to-go", 2).cosine is None


def test_small_rewards_are_told_apart_as_large_ones():
    """ρ of rewards by 10⁻¹³ is ρ by 10⁻¹³."""
    mapping = ind.mapping(ind.PROBLEMS["meets"])
    for state in mapping["states"].values():
        for action in state.values():
            for move in action["moves"]:
                move["reward"] *= 1e-13
    close(
        turn_mean(episode_problem(mapping), "pooled-mean", 2).mean * 1e13,
        brute("meets", "pooled-mean", 2).mean,
    )


def test_what_pushes_the_wrong_way():
    """In π of the first action, from the score: ∂/∂π = ∂/∂θ / (π (1 - π))."""
    tool, weather = load_episodes("ustat:tool"), load_episodes("ustat:weather")
    places = [tool.parameters("question").start, tool.parameters("informed").start]
    slopes = [
        mean[places] / [0.24, 0.09]
        for mean in (tool.gradient(), turn_mean(tool, "summed", 400).mean)
    ]
    close(slopes, [[-0.6, 0.4], [0.3, 0.4]])
    places = [weather.parameters("good").start, weather.parameters("bad").start]
    slopes = [
        mean[places] / 0.25 for mean in (weather.gradient(), turn_mean(weather, "summed", 400).mean)
    ]
    close(slopes, [[1.5, 0.5], [0.5, -0.5]])
    assert turn_mean(library("opposed"), "to-go-mean", 2).cosine == pytest.approx(-1)
    # Equal pass rates, one call of a tool or none: the deviation of all turns as samples pushes.
    for rate, push in ((Fraction(3, 10), -0.00799), (HALF, 0), (Fraction(7, 10), 0.00799)):
        ways = f"{rate} 1, {1 - rate} 0"
        problem = ind.problem(f"ask: call 1/2 = 1 0 read; say 1/2 = {ways}\nread: say 1 = {ways}")
        found = enumerate_turns(episode_problem(ind.mapping(problem)), "pooled-mean", 4, ddof=1)
        assert found.mean[0] == pytest.approx(push, abs=5e-6)


@pytest.mark.parametrize("size", [2, 3, 4, 9])
@pytest.mark.parametrize(("q", "value"), [*product((1, 2, 5), (-3, -1, 0, 1, 2))])
def test_the_rule_names_the_better_baseline_where_its_condition_holds(size, q, value):
    """A last turn of uniform actions that do not matter: ‖s‖² is constant and gₜ = 0."""
    moves = f"1/4 {value + 3}, 3/4 {value - 1}"
    problem = ind.problem(
        f"a: go {q}/6 = 1 0 b; stop {6 - q}/6 = 1/2 2, 1/2 -1\nb: l 1/2 = {moves}; r 1/2 = {moves}"
    )
    here, first = (ind.Turn(ind.episodes(problem), t) for t in (1, 0))
    alone = (1 - here.q) ** (size - 1)
    alive = ind.binomial(size - 1, here.q, lambda k: Fraction(k > 0, max(k, 1)))
    ours, theirs, bare = (
        turn_noise(episode_problem(ind.mapping(problem)), scheme, size)[1]
        for scheme in ("to-go", "episode", "none")
    )
    gap = here.value**2 / here.variance - alive / (1 - alone)
    assert np.sign(np.round(bare - ours, 14)) == np.sign(gap)
    gap = first.variance / (size - 1) + (here.value - first.value) ** 2
    gap -= here.variance * alive + here.value**2 * alone
    assert np.sign(np.round(theirs - ours, 14)) == np.sign(gap)


TOOL = load_episodes("ustat:tool")
test_what_cannot_be_predicted_is_refused = refusals(
    (lambda: turn_mean(TOOL, "togo", 2), "scheme 'togo' is unknown, did you mean to-go"),
    (
        lambda: turn_mean(TOOL, "to-go", 0),
        "group_size is 0: it must be a whole number of at least 1",
    ),
    (lambda: turn_mean(TOOL, "to-go", 2, discount=-1), "discount is -1.0: it must be at least 0"),
    (
        lambda: turn_mean(TOOL.bandit(), "to-go", 2),
        "problem is a SoftmaxBandit: it must be Episodes",
    ),
    (
        lambda: turn_noise(TOOL, "summed", 2),
        "scheme 'summed' is unknown: choose one of none, to-go, episode",
    ),
    (
        lambda: turn_noise(TOOL, "episode", 1),
        "group_size is 1: it must be a whole number of at least 2",
    ),
    (
        lambda: enumerate_turns(TOOL, "summed", 2, by_state=True),
        "states: scheme 'summed' does not take them",
    ),
    (
        lambda: enumerate_turns(TOOL, "summed", 300),
        "groups of 300, more than 2,000,000: take a smaller",
    ),
)


def test_a_group_of_one_has_no_baseline():
    for scheme in ("episode", "to-go", "pooled", "summed"):
        close(turn_mean(TOOL, scheme, 1).mean, TOOL.gradient())
    assert turn_noise(TOOL, "to-go", 1).tolist() == turn_noise(TOOL, "none", 1).tolist()
    assert not turns([[1.0]], [[1]], "to-go-mean").any()
