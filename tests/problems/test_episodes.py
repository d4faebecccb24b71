"""Problems with turns against a second mind's list of episodes; files, limits and what is refused.

The scores of single turns are held to it in ``tests/predictions/test_turns.py``.
"""

from importlib.resources import files

import numpy as np
import pytest

from tests.support import independent_turns as ind
from tests.support.refusals import refusals, refuses
from ustat_pg.problems import episode_problem, load_episodes

SHIPPED = {name: load_episodes(f"ustat:{name}") for name in ("tool", "weather")}
LOOP = ind.problem("a: go 1/2 = 1 1 a; stop 1/2 = 1 0", turns=5)


def of_prompt(listed):
    """V, σ², E‖s‖² aⁿ and ‖g‖² of whole episodes, a = R₁ - V, s the sum of their turns' scores."""
    value = sum(e.prob * e.back(0) for e in listed)
    norms = [(e.prob * (sum(e.scores) @ sum(e.scores)), e.back(0) - value) for e in listed]
    gradient = sum(e.back(0) * e.slope for e in listed)
    spread = sum(e.prob * (e.back(0) - value) ** 2 for e in listed)
    powers = (sum(w * a**n for w, a in norms) for n in range(3))
    return np.array([value, spread, *powers, gradient @ gradient], dtype=float)


@pytest.mark.parametrize("name", ind.PROBLEMS)
def test_episodes_gradient_and_bandit_are_the_second_minds(name):
    """Problems begin in their first state, or in their last with probability 3/4."""
    problem = ind.PROBLEMS[name]
    states = list(problem.states)
    starts = {states[0]: 0.25, states[-1]: 0.75} if len(states) > 1 else {states[0]: 1.0}
    mine = episode_problem(ind.mapping(problem, starts))
    parts = [ind.episodes(problem, start=start) for start in starts]
    assert len(mine.episodes.probs) == sum(map(len, parts))
    slopes = [sum(e.back(0) * e.slope for e in part).astype(float) for part in parts]
    np.testing.assert_allclose(
        mine.gradient(), list(starts.values()) @ np.array(slopes), atol=1e-14
    )
    moments = mine.bandit().moments()
    found = [moments.value, moments.reward_variance, moments.fisher_trace]
    found += [moments.norm_advantage, moments.norm_squared_advantage, moments.gradient_sq]
    np.testing.assert_allclose(np.transpose(found), [*map(of_prompt, parts)], atol=1e-12)
    assert moments.mean_gradient_sq == pytest.approx(mine.gradient() @ mine.gradient())
    assert mine.objective() == pytest.approx(moments.value @ list(starts.values()))


def test_the_gradient_is_the_objectives_in_the_logits():
    problem = load_episodes("ustat:walk")
    ahead, behind = (
        [
            problem.with_logits(problem.logits + h).objective()
            for h in sign * 1e-5 * np.eye(problem.d)
        ]
        for sign in (1, -1)
    )
    np.testing.assert_allclose(problem.gradient(), np.subtract(ahead, behind) / 2e-5, atol=1e-9)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_problem_is_the_second_minds_and_its_file_reads_the_same(name, tmp_path):
    shipped, listed = SHIPPED[name], ind.episodes(ind.PROBLEMS[name])
    np.testing.assert_allclose(
        shipped.gradient(), sum(e.back(0) * e.slope for e in listed).astype(float), atol=1e-14
    )
    assert sorted(shipped.episodes.probs) == pytest.approx(sorted(float(e.prob) for e in listed))
    path = tmp_path / "mine.json"
    path.write_bytes((files("ustat_pg.problems") / "turns" / f"{name}.json").read_bytes())
    read = load_episodes(path)
    assert read.names == shipped.names
    for key, array in vars(shipped.episodes).items():
        assert np.array_equal(array, getattr(read.episodes, key)), key


def test_a_loop_ends_after_its_turns_and_is_refused_without_a_limit():
    problem = episode_problem(ind.mapping(LOOP))
    assert problem.episodes.rewards.shape == (6, 5)
    assert problem.objective() == pytest.approx(1 - 2**-5)
    refuses(
        "a path returns to its state, a to a: give max_turns",
        episode_problem,
        ind.mapping(LOOP._replace(turns=None)),
    )


def test_more_episodes_than_can_be_listed_are_refused(monkeypatch):
    for most in (6, 5):
        monkeypatch.setattr("ustat_pg.problems.episodes.MOST_EPISODES", most)
        problem = episode_problem(ind.mapping(LOOP))
        if most == 6:
            assert len(problem.episodes.probs) == 6
        else:
            refuses("more than 5 episodes", lambda problem=problem: problem.episodes)


def changed(*path, to=None):
    """Reading the tool problem with one entry set, or taken out."""

    def call():
        inner = data = ind.mapping(ind.PROBLEMS["tool"])
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to
        if to is None:
            del inner[path[-1]]
        return episode_problem(data)

    return call


MOVES = ("states", "question", "answer", "moves")
test_what_is_no_problem_is_refused = refusals(
    (lambda: episode_problem([]), "a problem with turns is .*: it must be an object"),
    (changed("start"), "start is missing"),
    (changed("starts", to=1), "starts is unknown; it may hold max_turns, start, states, title"),
    (
        changed("start", to={"qestion": 1}),
        "start: no state is called 'qestion', did you mean 'question'",
    ),
    (changed("start", "informed", to=1), "start sums to 2.0: probabilities must sum to 1"),
    (changed("max_turns", to=0), "max_turns is 0: it must be a whole number of at least 1"),
    (
        changed("states", "question", to={}),
        "question is {}: it must be an object with at least one",
    ),
    (changed(*MOVES), "states.question.answer: moves is missing"),
    (changed(*MOVES, to=[]), "states.question.answer.moves must be a list of at least one move"),
    (changed(*MOVES, 0, "prob", to=0.9), "question.answer: the probs of its moves sums to 1.6"),
    (changed(*MOVES, 0, "reward", to=float("nan")), "question.answer: reward holds nan"),
    (
        changed(*MOVES, 0, "to", to="infromed"),
        "no state is called 'infromed', did you mean 'informed'",
    ),
    (
        changed("states", "question", "answer", "logit", to="1"),
        "answer.logit is not an array of num",
    ),
    (lambda: load_episodes("ustat:weahter"), "ustat:weahter: there are tool, walk, weather"),
    (lambda: load_episodes("nowhere.json"), "nowhere.json"),
    (lambda: SHIPPED["tool"].parameters("home"), "state 'home' is unknown"),
    (lambda: SHIPPED["tool"].with_logits([0.0]), "logits have 1 entries: .* has 4 parameters"),
)


def test_scores_of_too_many_bytes_are_refused_before_they_are_made(monkeypatch):
    problem = load_episodes("ustat:tool")
    monkeypatch.setattr("ustat_pg.problems.episodes.MOST_BYTES", 255)
    monkeypatch.setattr(np, "zeros", None)
    refuses("4 episodes of 2 turns with 4 parameters have scores of 0.0 GB", problem.gradient)
    monkeypatch.undo()
    assert 8 * load_episodes("ustat:tool").episodes.scores.size == 256
