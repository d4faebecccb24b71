"""Problems with turns against a second mind's list of episodes; files, limits and what is refused."""

from __future__ import annotations

from fractions import Fraction
from importlib.resources import files

import numpy as np
import pytest

from tests.support import independent_turns as ind
from tests.support.refusals import refusals, refuses
from ustat_pg.problems import episode_problem, episode_problems, load_episodes

LOOP = "a: go 1/2 = 1 1 a; stop 1/2 = 1 0"


def rows(problem):
    """The library's episodes, one row each in a fixed order: turns, rewards, scores, probability."""
    listed = problem.episodes
    columns = [listed.states, listed.rewards, listed.scores.reshape(len(listed.probs), -1)]
    table = np.column_stack([*columns, listed.probs])
    return table[np.lexsort(table.round(9).T)]


def expected(problem):
    """The same of the second mind's."""
    names, found = list(problem.states), ind.episodes(problem)
    turns = max(len(e.states) for e in found)
    d = len(found[0].slope)
    table = np.array(
        [
            [
                *[names.index(x) for x in e.states] + [-1] * (turns - len(e.states)),
                *map(float, [*e.rewards] + [0] * (turns - len(e.rewards))),
                *map(float, np.concatenate(e.scores)),
                *[0.0] * (turns - len(e.states)) * d,
                float(e.prob),
            ]
            for e in found
        ]
    )
    return table[np.lexsort(table.round(9).T)]


@pytest.mark.parametrize("name", ind.PROBLEMS)
def test_the_episodes_are_the_second_minds(name):
    problem = ind.PROBLEMS[name]
    mine = episode_problem(ind.mapping(problem))
    np.testing.assert_allclose(rows(mine), expected(problem), rtol=0, atol=1e-14)
    listed = ind.episodes(problem)
    gradient = sum(e.back(0) * e.slope for e in listed)
    np.testing.assert_allclose(mine.gradient(), gradient.astype(float), atol=1e-14)
    assert mine.objective() == pytest.approx(float(sum(e.prob * e.back(0) for e in listed)))


def test_the_gradient_is_the_objectives_in_the_logits():
    problem = episode_problem(ind.mapping(ind.PROBLEMS["again"]))
    step = 1e-5 * np.eye(problem.d)
    ahead, behind = (
        np.array([problem.with_logits(problem.logits + sign * h).objective() for h in step])
        for sign in (1, -1)
    )
    np.testing.assert_allclose(problem.gradient(), (ahead - behind) / 2e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["tool", "weather"])
def test_a_shipped_problem_is_the_second_minds_and_its_file_reads_the_same(name, tmp_path):
    shipped = load_episodes(f"ustat:{name}")
    np.testing.assert_allclose(rows(shipped), expected(ind.PROBLEMS[name]), rtol=0, atol=1e-14)
    path = tmp_path / "mine.json"
    path.write_text(
        (files("ustat_pg.problems") / "turns" / f"{name}.json").read_text("utf-8"), "utf-8"
    )
    read = load_episodes(path)
    assert read.names == shipped.names
    assert np.array_equal(rows(read), rows(shipped))
    assert f"ustat:{name}".removeprefix("ustat:") in episode_problems()


@pytest.mark.parametrize("name", ["meets", "again"])
def test_the_bandit_has_the_episodes_moments(name):
    """At each of two starts: V, σ², E‖s‖² aⁿ and the gradient, s the sum of the turns' scores."""
    problem = ind.PROBLEMS[name]
    bandit = episode_problem(ind.mapping(problem, {"a": 0.25, "b": 0.75})).bandit()
    moments, whole = bandit.moments(), 0.0
    for x, (start, chance) in enumerate((("a", 0.25), ("b", 0.75))):
        listed = ind.episodes(problem, start=start)
        value = sum(e.prob * e.back(0) for e in listed)
        norms = [(e.prob * (sum(e.scores) @ sum(e.scores)), e.back(0) - value) for e in listed]
        gradient = sum(e.back(0) * e.slope for e in listed)
        whole = whole + chance * gradient.astype(float)
        found = [moments.value, moments.reward_variance, moments.fisher_trace]
        found += [moments.norm_advantage, moments.norm_squared_advantage, moments.gradient_sq]
        wanted = [value, sum(e.prob * (e.back(0) - value) ** 2 for e in listed)]
        wanted += [*(sum(w * a**n for w, a in norms) for n in range(3)), gradient @ gradient]
        np.testing.assert_allclose(
            [row[x] for row in found], [float(v) for v in wanted], rtol=1e-12
        )
    assert moments.mean_gradient_sq == pytest.approx(float(whole @ whole), rel=1e-12)


def test_a_loop_ends_after_its_turns_and_is_refused_without_a_limit():
    problem = ind.problem(LOOP, turns=5)
    mine = episode_problem(ind.mapping(problem))
    assert mine.episodes.rewards.shape == (6, 5)
    assert mine.objective() == pytest.approx(float(sum(Fraction(1, 2**n) for n in range(1, 6))))
    refuses("states lead back.* max_turns", lambda: episode_problem(ind.mapping(ind.problem(LOOP))))


def test_more_episodes_than_can_be_listed_are_refused(monkeypatch):
    problem = episode_problem(ind.mapping(ind.PROBLEMS["again"]))
    monkeypatch.setattr("ustat_pg.problems.episodes.MOST_EPISODES", len(problem.episodes.probs))
    assert len(episode_problem(ind.mapping(ind.PROBLEMS["again"])).episodes.probs) == 7
    monkeypatch.setattr("ustat_pg.problems.episodes.MOST_EPISODES", 6)
    refuses(
        "more than 6 episodes",
        lambda: episode_problem(ind.mapping(ind.PROBLEMS["again"])).episodes,
    )


def changed(*path, to):
    """Reading the tool problem with one entry set, or taken out where ``to`` is None."""

    def call():
        data = ind.mapping(ind.PROBLEMS["tool"])
        inner = data
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
    (changed("start", to=None), "start is missing"),
    (changed("states", to={}), "states is {}: it must be an object with at least one entry"),
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
    (changed(*MOVES, to=None), "states.question.answer: moves is missing"),
    (changed(*MOVES, to=[]), "states.question.answer.moves must be a list of at least one move"),
    (changed(*MOVES, 0, "prob", to=0.9), "question.answer: the probs of its moves sums to 1.6"),
    (changed(*MOVES, 0, "reward", to=float("nan")), "question.answer: reward holds nan"),
    (changed(*MOVES, 0, "then", to=1), "then is unknown; it may hold prob, reward, to"),
    (
        changed(*MOVES, 0, "to", to="infromed"),
        "no state is called 'infromed', did you mean 'informed'",
    ),
    (changed(*MOVES, 0, "to", to=["informed"]), "no state is called"),
    (
        changed("states", "question", "answer", "logit", to="1"),
        "question.answer.logit is not an array of num",
    ),
    (lambda: load_episodes("ustat:weahter"), "ustat:weahter: there are tool, weather"),
    (lambda: load_episodes("nowhere.json"), "nowhere.json"),
    (lambda: load_episodes("ustat:tool").parameters("home"), "state 'home' is unknown"),
    (
        lambda: load_episodes("ustat:tool").with_logits([0.0]),
        "logits have 1 entries: .* has 4 parameters",
    ),
)
