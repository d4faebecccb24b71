"""The leaderboard of unbiased advantage functions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.refusals import refuses
from ustat_pg import estimators
from ustat_pg.testing import exact_mse, leaderboard
from ustat_pg.testing.leaderboard import KNOWN, LEADERBOARD_SIZES, _equal_arms, _problems

RLOO = "leave-one-out mean (RLOO)"


def posterior(rewards):
    others = rewards.sum(-1, keepdims=True) - rewards
    return rewards - (others + 1) / (rewards.shape[-1] + 1)


@pytest.fixture(scope="module")
def board():
    return leaderboard(posterior)


def test_an_entry_has_the_errors_of_its_formula(board):
    """The function's own name beside the library's: read off, and by the closed form."""
    for problem, by_size in board.errors["posterior"].items():
        known = board.errors["Bayes leave-one-out, uniform"][problem]
        assert by_size == pytest.approx(known)


def test_errors_are_those_of_enumeration(board):
    """Prompt by prompt: their parameters are their own, and the batch holds each once."""
    reports = [exact_mse(posterior, problem=_equal_arms(c), group_size=2) for c in (1, 1, 19, 19)]
    ratio = sum(r.mse for r in reports) / sum(r.oracle_mse for r in reports)
    assert board.errors["posterior"]["hard and easy"][2] == pytest.approx(ratio)


def test_the_best_table_is_first_on_each_problem(board):
    for problem in _problems():
        for size in LEADERBOARD_SIZES:
            least = min(errors[problem][size] for errors in board.errors.values())
            assert board.errors["best table (knows the problem)"][problem][size] == least
            assert board.errors[RLOO][problem][size] > 1
    assert board.ranking[0] == "best table (knows the problem)"
    assert set(board.errors) == {*KNOWN, "posterior"}


def test_it_prints_the_ranking(board):
    lines = str(board).splitlines()
    assert [line.split("  ")[0].strip() for line in lines[2:]] == board.ranking
    assert lines[0].split()[-1] == "mean"
    row = next(line for line in lines if line.startswith(RLOO))
    assert row.split()[-1] == f"{board.overall(RLOO):.3f}"


def test_functions_of_torch_and_of_single_groups():
    torch = pytest.importorskip("torch")
    mine = leaderboard(posterior, array=lambda z: torch.tensor(z, dtype=torch.float32))
    assert mine.overall("posterior") == pytest.approx(leaderboard(posterior).overall("posterior"))
    one = leaderboard(posterior, layout="group")
    assert one.overall("posterior") == pytest.approx(mine.overall("posterior"))


def ordered(rewards):
    baseline = np.zeros_like(rewards)
    baseline[..., 0] = 0.5
    return rewards - baseline


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            estimators.group_mean,
            "group_mean is biased: at G = 2, .* gains 0.5 on a failure, and not 1",
        ),
        (estimators.standardised, "standardised is biased: at G = 4"),
        (estimators.maxrl, "maxrl is biased"),
        (ordered, "ordered depends on the order of a group"),
        (lambda z: z / 0, "is not finite"),
    ],
)
def test_what_has_no_place_on_it(function, said):
    with pytest.raises(AssertionError, match=said):
        leaderboard(function)


def test_what_is_no_function():
    refuses("must be callable", leaderboard, 3)
