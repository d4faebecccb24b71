"""``advise`` answers whatever is known, in one form, and says what it does not take."""

from pathlib import Path

import numpy as np

from tests.support.refusals import refusals
from ustat_pg import ModelPool, ScoredPool, advise, load_problem
from ustat_pg.problems import example_problem

POOL = "tests/data/pools/scored.npz"
MODEL = ModelPool(model="embedded:short")


def test_a_problem_is_asked_in_any_of_its_forms():
    problem = load_problem(example_problem())
    answer = advise(problem, 24)
    for form in (example_problem(), problem.moments()):
        assert advise(form, 24).sizes.to_frame()["mse"].tolist() == [
            row.mse for row in answer.sizes.table
        ]
    assert (
        advise("ustat:uneven", 64).to_dict() == advise(load_problem("ustat:uneven"), 64).to_dict()
    )


def test_a_pool_is_asked_by_its_file_or_as_it_is():
    pool = ScoredPool.load(POOL)
    answers = [advise(what, 64) for what in (POOL, Path(POOL), pool)]
    assert len({str(answer) for answer in answers}) == 1
    made = ScoredPool.from_scores(
        pool.rewards, np.random.default_rng(0).normal(size=(*pool.rewards.shape, 3))
    )
    assert advise(made, 64).group_size >= 2


test_what_it_does_not_take = refusals(
    (
        lambda: advise([1, 0, 1], 64),
        "no advice for a list: give a problem, a ScoredPool or a ModelPool",
    ),
    (lambda: advise(np.ones((2, 8)), 64), r"ScoredPool.from_scores\(rewards, scores\)"),
    (lambda: advise({"logit": [0.0]}, 64), "a problem needs exactly one of"),
    (
        lambda: advise("tests/data/pools/rollouts.jsonl", 64),
        "or advise with rollouts of a ModelPool",
    ),
    (lambda: advise("no.npz", 64), "no.npz"),
    (lambda: advise("ustat:uneven", 64, until="all"), "advice of a problem does not take until"),
    (lambda: advise(POOL, 64, progress=print), "advice of a scored pool does not take progress"),
    (lambda: advise(MODEL, 64, off_policy=True), "advice of a model does not take off_policy"),
    (lambda: advise("ustat:uneven", 64, stage_cost=1), "write adaptive=True too, or leave it out"),
    (lambda: advise("ustat:uneven", 64, adaptive=True, stage_cost=-1), "cost of a stage is -1"),
    (
        lambda: load_problem(3),
        "problem is 3: it must be a SoftmaxBandit, named arrays, a file or ustat:NAME",
    ),
)
