"""The engines of whole runs: the same paths as the reference, and the same in other blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import run_laws as laws
from tests.support.bends import bends_of, with_bends
from tests.support.laws import FAR
from tests.support.problems import RUN_ESTIMATORS, smooth
from tests.support.run_laws import SUBJECTS, TOLERANCE, path
from ustat_pg.engines import Ball, Constant, Decay
from ustat_pg.engines.runs import reference
from ustat_pg.engines.runs.trajectory import Trajectory
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError

each_estimator = pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)
each_engine = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)


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


@compared("cpu")
@each_estimator
@pytest.mark.parametrize("layout", laws.LAYOUTS)
def test_the_same_draws_make_the_same_path(layout, estimator, subject, bent):
    laws.same_path(subject, path(layout, estimator, subject.steps, bent=bent))


@compared(*SUBJECTS)
@pytest.mark.parametrize("layout", ["batch beyond the prompts", "epochs of two steps"])
@each_estimator
def test_blocks_of_runs(layout, estimator, subject, bent):
    trajectory = path(layout, estimator, 12, bent=bent, snapshots=(0, 5, 12))
    laws.blocks_merge(subject, trajectory)
    if estimator.baseline == "grpo":
        laws.snapshots_change_no_path(subject, trajectory)
        laws.same_seed_same_bytes(subject, trajectory)
        laws.threads_serve_blocks(subject, trajectory)


@each_engine
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"replications": 0}, "replications is 0"),
        ({"first": -1}, "first replication is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"first": 2**63 - 1, "replications": 2}, r"end at 2\^63"),
    ],
)
def test_blocks_that_are_refused(subject, where, message):
    with pytest.raises(InputError, match=message):
        subject.run(path("one prompt", RUN_ESTIMATORS[0], 9), **where)


def dyadic(contexts):
    """Numbers that a float64 holds exactly, so that no machine's library rounds them."""
    count = contexts * 5 * 2
    return SoftmaxBandit.linear(
        np.full(contexts, 1 / contexts),
        ((np.arange(count) * 7 % 13 - 6) / 8).reshape(contexts, 5, 2),
        [0.25, -0.5],
        ((np.arange(contexts * 15) * 5 % 8) / 8).reshape(contexts, 5, 3),
        np.tile([0.5, 0.125, 0.375], (contexts, 5, 1)),
        (np.arange(contexts * 5) % 3 / 4).reshape(contexts, 5),
    )


MEANS = {
    1: [-0.03791713062703, -0.03388394792874, -0.04281970142333, -0.04238552088526,
        -0.04334576081911, -0.07045844149094, -0.0440217485953],
    4: [-0.08502075172753, -0.07071084482282, -0.0982234890226, -0.09854845551233,
        -0.0958394416777, -0.1066850789418, -0.09667978766995],
    8: [-0.1153216686859, -0.1083857037971, -0.1209813983509, -0.1210736369927,
        -0.1203124938849, -0.1225019021584, -0.1203599469872],
}  # fmt: skip
"""The mean parameter of 200 runs, by the number of contexts, of each estimator."""


@pytest.mark.parametrize("contexts", MEANS)
def test_linear_policies_keep_their_paths(contexts):
    """The numbers of the engine before logits could bend: every baseline, three layouts."""
    found = [
        Trajectory(
            dyadic(contexts), 3, 50, Decay(3.0, 5.0), estimator, 2,
            projection=Ball([0.0, 0.0], 0.7), snapshots=(7, 50),
        ).run("cpu", seed=4, first=FAR, replications=200).mean()
        for estimator in RUN_ESTIMATORS
    ]  # fmt: skip
    # A draw of another outcome in one run moves the mean by more.
    assert found == pytest.approx(MEANS[contexts], rel=1e-11)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@each_estimator
def test_bends_of_zero_change_no_bit_and_equal_ones_nothing(name, estimator, monkeypatch):
    """Given the same draws: the address of a bent problem is another.

    What all arms of a context lose alike drops out of the softmax, and of the scores.
    """
    which = smooth(6, 5, 3, 4)
    zero = np.zeros_like(which.policy.features)
    more = {"estimator": estimator, "batch_size": 2, "start_scale": 0.5, "snapshots": (0, 9, 30)}
    linear = Trajectory(which, 3, 30, Constant(0.5), **more)
    bent = Trajectory(with_bends(which, zero), 3, 30, Constant(0.5), **more)
    assert linear.name != bent.name
    monkeypatch.setattr(Trajectory, "name", "the same draws")
    plain, other = (trajectory.run(name, replications=200) for trajectory in (linear, bent))
    assert np.array_equal(plain, other)
    alike = Trajectory(with_bends(which, zero + 0.1), 3, 30, Constant(0.5), **more)
    assert np.abs(alike.run(name, replications=200) - plain).max() < TOLERANCE
    small = Trajectory(with_bends(which, bends_of(which) / 100), 3, 30, Constant(0.5), **more)
    assert np.abs(small.run(name, replications=200) - plain).max() > 1e-3


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
    for baseline in RUN_ESTIMATORS:
        trajectory = Trajectory(steep, 3, 200, Constant(2.0), baseline, start_scale=1.0)
        one, two = (trajectory.run(name, replications=80) for name in ("reference", "cpu"))
        assert np.isfinite(one).all()
        assert one == pytest.approx(two, rel=1e-9, abs=1e-9)


def test_the_reference_engines_chunks_do_not_change_a_bit(monkeypatch):
    trajectory = path("three prompts", RUN_ESTIMATORS[3], 20)
    whole = trajectory.run("reference", replications=50)
    monkeypatch.setattr(reference, "_CHUNK_BYTES", 8 * 9 * 2 * 7)
    assert np.array_equal(trajectory.run("reference", replications=50), whole)
