"""The engines of whole runs: the same paths as the reference, and the same in other blocks."""

from itertools import product

import numpy as np
import pytest

from simulations.engines import Constant
from simulations.engines.runs import reference
from simulations.engines.runs.trajectory import Trajectory
from tests.support import run_laws as laws
from tests.support.bends import with_bends
from tests.support.estimators import tables_of
from tests.support.problems import RUN_ESTIMATORS, smooth
from tests.support.run_laws import SUBJECTS, path
from ustat_pg.problems import SoftmaxBandit

each_estimator = pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)


def compared(*ways):
    """Engines on linear and on bent logits."""
    return pytest.mark.parametrize(
        ("subject", "bent"),
        [
            pytest.param(subject, bent, id=f"{name}-{'bent' if bent else 'linear'}")
            for name, subject in SUBJECTS.items()
            for bent in (False, True)
            if name in ways
        ],
    )


THIRTY = [
    pytest.param(layout, estimator, turn % 3 == 0, id=f"{layout}-{estimator.label}-{turn % 3 == 0}")
    for (i, layout), (j, estimator) in product(enumerate(laws.LAYOUTS), enumerate(RUN_ESTIMATORS))
    if (turn := i + j) % 3 < 2
]
"""A third of all cases: every layout and every estimator on linear and on bent logits."""


@pytest.mark.parametrize(("layout", "estimator", "bent"), THIRTY)
def test_the_same_draws_make_the_same_path(layout, estimator, bent):
    subject = SUBJECTS["cpu"]
    laws.same_path(subject, path(layout, estimator, subject.steps, bent=bent))


def test_the_thirty_hold_every_pair_that_a_body_may_treat_apart():
    cases = [case.values for case in THIRTY]
    assert {(layout, bent) for layout, _, bent in cases} == {*product(laws.LAYOUTS, (False, True))}
    pairs = {(estimator.label, bent) for _, estimator, bent in cases}
    assert pairs == {(e.label, bent) for e in RUN_ESTIMATORS for bent in (False, True)}


@compared("cpu")
@pytest.mark.parametrize("layout", ["one prompt", "three prompts"])
def test_the_same_draws_make_the_same_path_by_every_table_by_counts(layout, subject, bent):
    for estimator in tables_of(laws.LAYOUTS[layout][4]):
        laws.same_path(subject, path(layout, estimator, 20, bent=bent, binary=True))


@compared(*SUBJECTS)
@pytest.mark.parametrize("layout", ["batch beyond the prompts", "epochs of two steps"])
@each_estimator
def test_blocks_of_runs(layout, estimator, subject, bent):
    trajectory = path(layout, estimator, 12, bent=bent, snapshots=(0, 5, 12))
    laws.blocks_merge(subject, trajectory)
    if estimator.name == "grpo":
        laws.snapshots_change_no_path(subject, trajectory)
        laws.same_seed_same_bytes(subject, trajectory)
        laws.threads_serve_blocks(subject, trajectory)


@pytest.mark.parametrize("theta_set", laws.SETS.values(), ids=laws.SETS)
def test_the_same_path_on_a_set(theta_set):
    which = smooth(3, 7, 3, 2)
    for one in (which, with_bends(which)):
        asked = {"projection": theta_set, "start_scale": 1.0, "snapshots": (0, 100, 200)}
        laws.same_path(SUBJECTS["cpu"], Trajectory(one, 3, 200, Constant(0.3), **asked))


def test_the_same_path_where_the_policy_is_nearly_sure():
    """Logits that lie 1000 apart: weights of exactly zero, at both ends and in the middle."""
    features = np.array([[[-1.0], [0.5], [0.2], [-2.0]]])
    offset = np.array([[0.0, 0.0, -1000.0, 0.3]])
    steep = SoftmaxBandit.linear(
        [1.0], features, [3.0], [[[1.0], [0.5], [9.0], [0.2]]], np.ones((1, 4, 1)), offset
    )
    for estimator in RUN_ESTIMATORS:
        trajectory = Trajectory(steep, 3, 200, Constant(2.0), estimator, start_scale=1.0)
        one, two = (trajectory.run(name, replications=80) for name in ("reference", "cpu"))
        assert np.isfinite(one).all()
        assert one == pytest.approx(two, rel=1e-9, abs=1e-9)


def test_the_reference_engines_chunks_do_not_change_a_bit(monkeypatch):
    trajectory = path("three prompts", RUN_ESTIMATORS[3], 20)
    whole = trajectory.run("reference", replications=50)
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 8 * 9 * 2 * 7)
    assert np.array_equal(trajectory.run("reference", replications=50), whole)
