"""Token problems: verifiers against other ways to check, the bandit they make, refusals."""

import itertools
import pickle

import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.problems import (
    TokenProblem,
    bracket_matching,
    digit_addition,
    modular_sum,
    sorting,
    verified,
)
from ustat_pg.problems import tokens as module
from ustat_pg.validation import changed

PROBLEMS = {
    "modular": modular_sum(3, 2),
    "modular-graded": modular_sum(5, 2, end=True, graded=True),
    "addition": digit_addition(3, 1),
    "addition-graded": digit_addition(2, 2, graded=True, prompts=[(0, 1, 1, 1), (1, 1, 0, 0)]),
    "addition-ended": digit_addition(2, 1, end=True),
    "brackets": bracket_matching(2, 3, end=True),
    "brackets-graded": bracket_matching(1, 4, graded=True),
    "sorting": sorting(3, 2),
    "sorting-graded": sorting(2, 3, end=True, graded=True),
}
each = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def answers(problem):
    return [problem.space.content(k) for k in range(problem.space.count)]


@each
def test_rewards_are_the_verifier_s_and_every_prompt_can_be_solved(problem):
    table = problem.rewards
    assert table.shape == (problem.contexts, problem.space.count)
    for x, prompt in enumerate(problem.prompts):
        for k, answer in enumerate(answers(problem)):
            assert table[x, k] == problem.verifier(prompt, answer)
    assert (table.max(axis=1) == 1).all()
    assert (table >= 0).all()
    assert problem.optimum == pytest.approx(1, abs=1e-15)
    assert np.ptp(table, axis=1).min() > 0


def test_modular_sums():
    problem = modular_sum(4, 3, prompts=[(1, 3), (2,)])
    for x, prompt in enumerate(problem.prompts):
        right = {y for y in itertools.product(range(4), repeat=3) if sum(y) % 4 == sum(prompt) % 4}
        assert {a for a, z in zip(answers(problem), problem.rewards[x], strict=True) if z} == right
    graded = modular_sum(6, 1, graded=True).rewards[2]
    assert np.allclose(graded, [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3, 0])
    assert modular_sum(1, 2).rewards.tolist() == [[1.0]]


@pytest.mark.parametrize("end", [False, True])
def test_digit_addition(end):
    problem = digit_addition(10, 1, end=end)
    assert problem.contexts == 100
    for x, (a, b) in enumerate(problem.prompts):
        texts = ["".join(map(str, answer)) for answer in answers(problem)]
        right = [text != "" and int(text) == a + b for text in texts]
        assert problem.rewards[x].tolist() == right
    graded = digit_addition(10, 1, end=end, graded=True)
    assert problem.prompts[57] == (5, 7)
    by_answer = dict(zip(answers(graded), graded.rewards[57], strict=True))
    assert [by_answer[y] for y in [(1, 2), (0, 2), (1, 0), (2, 1)]] == [1.0, 0.5, 0.5, 0.0]
    if end:
        assert (by_answer[()], by_answer[(2,)], by_answer[(1,)]) == (0.0, 0.5, 0.0)


def test_bracket_matching():
    problem = bracket_matching(2, 3, end=True)
    signs = "()[]"
    for x, prompt in enumerate(problem.prompts):
        for k, answer in enumerate(answers(problem)):
            text = "".join(signs[t] for t in (*prompt, *answer))
            while "()" in text or "[]" in text:
                text = text.replace("()", "").replace("[]", "")
            assert problem.rewards[x, k] == (text == "")
    # All runs of opening brackets that three tokens can close.
    assert problem.contexts == 1 + 2 + 4 + 8
    graded = bracket_matching(1, 2, graded=True, prompts=[(0, 0)])
    by_answer = dict(zip(answers(graded), graded.rewards[0], strict=True))
    assert by_answer == {(0, 0): 0.0, (0, 1): 0.5, (1, 0): 0.5, (1, 1): 1.0}
    assert bracket_matching(1, 3).prompts == ((0,), (0, 0, 0))


def test_sorting():
    problem = sorting(3, 3)
    assert problem.contexts == 27
    for x, prompt in enumerate(problem.prompts):
        assert answers(problem)[problem.rewards[x].argmax()] == tuple(sorted(prompt))
        assert problem.rewards[x].sum() == 1
    graded = sorting(3, 3, graded=True, prompts=[(2, 1, 0)])
    share = [np.mean([a == b for a, b in enumerate(answer)]) for answer in answers(graded)]
    assert np.allclose(graded.rewards[0], share)
    shorter = sorting(2, 3, end=True, prompts=[(1, 0)])
    assert answers(shorter)[shorter.rewards[0].argmax()] == (0, 1)


def test_the_digest_names_policy_and_problem():
    problem = PROBLEMS["modular"]
    policy = PrefixSoftmax.random(problem.space, 3, seed=0)
    bandit = problem.at(policy)
    assert problem.at(PrefixSoftmax.random(problem.space, 3, seed=0)).digest == bandit.digest
    others = [
        problem.at(PrefixSoftmax.random(problem.space, 3, seed=1)),
        problem.at(PrefixSoftmax(problem.space, policy.tables[:1], 3)),
        modular_sum(3, 2, prompts=[(1,), (0,), (2,)]).at(policy),
        changed(modular_sum(3, 2), probs=[0.5, 0.25, 0.25]).at(policy),
        bandit.restrict([0, 1]),
        bandit.with_theta(policy.theta + 1e-9),
        *(verified(bandit, right, 0.1) for right in (0.9, 0.8)),
    ]
    digests = {other.digest for other in others} | {bandit.digest}
    assert len(digests) == 9


@each
def test_problems_survive_pickling(problem):
    again = pickle.loads(pickle.dumps(problem))
    assert np.array_equal(again.rewards, problem.rewards)
    assert 0 < problem.gap(problem.at(PrefixSoftmax.random(problem.space, problem.contexts))) < 1
    policy = PrefixSoftmax.zeros(problem.space, problem.contexts)
    bandit = problem.at(policy)
    assert pickle.loads(pickle.dumps(bandit)).digest == bandit.digest


def test_a_moment_matrix_that_does_not_fit_is_refused(monkeypatch):
    problem = PROBLEMS["modular"]
    bandit = problem.at(PrefixSoftmax.zeros(problem.space, 3))
    assert len(list(bandit.moments().matrices())) == 3
    monkeypatch.setattr(module, "_MATRIX_BYTES", 8 * bandit.d**2 - 1)
    refuses("a moment matrix of 36 parameters needs", lambda: list(bandit.moments().matrices()))


SPACE = OutputSpace(2, 2)


def never(prompt, output):
    return 0.0


test_refused = refusals(
    (lambda: TokenProblem(SPACE, (), never), "set of prompts is empty"),
    (lambda: TokenProblem(SPACE, ((0, -1),), never), "prompt token is -1"),
    (lambda: TokenProblem(SPACE, ((0,),), never, [0.5, 0.5]), "there are 1 prompts"),
    (lambda: TokenProblem(SPACE, ((0,), (1,)), never, [0.5, 0.6]), "must sum to 1"),
    (lambda: TokenProblem(SPACE, ((0,),), lambda x, y: np.nan).rewards, "rewards holds nan"),
    (lambda: digit_addition(1, 2), "base is 1"),
    (lambda: modular_sum(3, 2, prompts=[(3,)]), r"prompt \(3,\): tokens are 0 to 2"),
    (lambda: modular_sum(20, 5), "make more outputs"),
    (
        lambda: PROBLEMS["modular"].at(PrefixSoftmax.zeros(OutputSpace(3, 2), 2)),
        "the policy has 2 prompts and 9 outputs: the problem has 3 and 9",
    ),
    (
        lambda: modular_sum(4, 2).at(PrefixSoftmax.zeros(OutputSpace(2, 4), 4)),
        "the policy's outputs are OutputSpace",
    ),
    (
        lambda: PROBLEMS["modular"].at(PrefixSoftmax.zeros(OutputSpace(3, 2), 3)).hessian(),
        "second derivatives of a PrefixSoftmax are not known",
    ),
)
