"""The trajectory engines against each other, and against themselves in other blocks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from tests.support.bends import bends_of, with_bends
from tests.support.problems import RUN_ESTIMATORS, smooth
from ustat_pg.engines import Ball, Box, Constant, Decay
from ustat_pg.engines.runs import reference as plain
from ustat_pg.engines.runs.lanes import FEW_CONTEXTS, LANES
from ustat_pg.engines.runs.trajectory import Trajectory
from ustat_pg.problems import SoftmaxBandit, random_problem

FAR = 2**40 + 3
STEPS = 200
TOLERANCE = 1e-9
"""The engines' exponentials differ in the last place. A word w is a draw of another arm where
w 2⁻³² C_K lies between the two values of Cₖ: with probability 1e-15 or so a draw."""


def run(name, trajectory, **where):
    return trajectory.run(name, **where)


def compare(trajectory, replications=60, seed=4, first=FAR):
    one, two = (
        run(name, trajectory, seed=seed, first=first, replications=replications)
        for name in ("reference", "cpu")
    )
    assert one.shape == two.shape
    assert one.shape == (replications, len(trajectory.snapshots), trajectory.problem.d)
    # Every replication: not one draw of 200 steps went to another outcome.
    assert np.abs(one - two).max() < TOLERANCE, np.abs(one - two).max()
    moved = np.abs(one[:, -1] - one[:, 0]).max()
    assert moved > 1e-3 or trajectory.snapshots == (0,)


@pytest.mark.parametrize("bent", [False, True], ids=["linear", "bent"])
@pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)
@pytest.mark.parametrize(
    ("contexts", "arms", "d", "values", "group", "batch", "design"),
    [
        (1, 9, 2, 2, 2, 1, "iid"),
        (3, 9, 2, 2, 3, 1, "iid"),
        (3, 18, 4, 3, 8, 2, "iid"),
        (4, 2, 1, 1, 5, 4, "epochs"),
        (6, 5, 3, 4, 2, 3, "epochs"),
        (FEW_CONTEXTS + 1, 6, 2, 2, 4, 5, "iid"),
        (40, 3, 2, 2, 2, 7, "iid"),
    ],
)
def test_the_same_draws_make_the_same_path(
    bent, estimator, contexts, arms, d, values, group, batch, design
):
    which = smooth(contexts, arms, d, values, uniform=design == "epochs")
    compare(
        Trajectory(
            with_bends(which) if bent else which,
            group,
            STEPS,
            Decay(3.0, 20.0),
            estimator,
            batch,
            design,
            start_scale=0.5,
            snapshots=(0, 1, 17, STEPS),
            # Bends of negative sign may drive θ to infinity, where rounding grows with it.
            projection=Ball(np.zeros(d), 2.0) if bent else None,
        )
    )


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
@pytest.mark.parametrize("estimator", RUN_ESTIMATORS, ids=lambda e: e.label)
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
    plain, other = (run(name, trajectory, replications=200) for trajectory in (linear, bent))
    assert np.array_equal(plain, other)
    alike = Trajectory(with_bends(which, zero + 0.1), 3, 30, Constant(0.5), **more)
    assert np.abs(run(name, alike, replications=200) - plain).max() < TOLERANCE
    small = Trajectory(with_bends(which, bends_of(which) / 100), 3, 30, Constant(0.5), **more)
    assert np.abs(run(name, small, replications=200) - plain).max() > 1e-3


@pytest.mark.parametrize(
    "theta_set",
    [
        Ball([0.1, 0.0, -0.2], 0.4),
        Ball([0.1, 0.0, -0.2], 0.4, np.linalg.qr(np.arange(6.0).reshape(3, 2) ** 2)[0]),
        Box([-0.1, -np.inf, 0.0], [0.3, 0.2, np.inf]),
    ],
    ids=["ball", "within a span", "box"],
)
def test_the_same_path_on_a_set(theta_set):
    which = smooth(3, 7, 3, 2)
    for one in (which, with_bends(which)):
        compare(
            Trajectory(
                one,
                3,
                STEPS,
                Constant(0.3),
                projection=theta_set,
                start_scale=1.0,
                snapshots=(0, 100, STEPS),
            )
        )


def test_the_same_path_where_the_policy_is_nearly_sure():
    """Logits that lie 1000 apart: weights of exactly zero, at both ends and in the middle."""
    features = np.array([[[-1.0], [0.5], [0.2], [-2.0]]])
    offset = np.array([[0.0, 0.0, -1000.0, 0.3]])
    steep = SoftmaxBandit.linear(
        [1.0], features, [3.0], [[[1.0], [0.5], [9.0], [0.2]]], np.ones((1, 4, 1)), offset
    )
    for baseline in RUN_ESTIMATORS:
        trajectory = Trajectory(steep, 3, STEPS, Constant(2.0), baseline, start_scale=1.0)
        one, two = (run(n, trajectory, replications=80) for n in ("reference", "cpu"))
        assert np.isfinite(one).all()
        assert one == pytest.approx(two, rel=1e-9, abs=1e-9)


def test_flipped_draws_are_rarer_than_one_in_a_million():
    """A draw of another outcome moves θ by 1e-3 and more: none in 1.6 million draws."""
    trajectory = Trajectory(smooth(3, 9, 2, 2), 4, STEPS, Decay(12.0, 100.0))
    one, two = (run(name, trajectory, replications=2000) for name in ("reference", "cpu"))
    flipped = (np.abs(one - two).max(axis=(1, 2)) > TOLERANCE).sum()
    assert flipped / (2000 * STEPS * 4) < 1e-6
    assert flipped == 0


def linear_kind():
    """A generated problem of the library, so that an offset that is not there is met too."""
    return random_problem(1, "linear")


@pytest.mark.parametrize("bent", [False, True], ids=["linear", "bent"])
@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("design", ["iid", "epochs"])
def test_blocks_and_resumption_do_not_change_a_bit(name, design, bent):
    for which, group, batch in ((smooth(6, 9, 2, 2), 3, 2), (smooth(6, 2, 1, 3), 16, 3)):
        for estimator in RUN_ESTIMATORS:
            trajectory = Trajectory(
                with_bends(which) if bent else which,
                group,
                12,
                Decay(3.0, 5.0),
                estimator,
                batch,
                design,
                start_scale=0.3,
                projection=Ball(np.zeros(which.d), 2.0),
                snapshots=(0, 5, 12),
            )
            total = 2 * LANES + 9
            whole = run(name, trajectory, seed=2, first=FAR, replications=total)
            cuts = [0, 1, 50, LANES + 3, total - 1, total]
            parts = [
                run(name, trajectory, seed=2, first=FAR + a, replications=b - a)
                for a, b in pairwise(cuts)
            ]
            assert np.array_equal(np.concatenate(parts), whole)


def test_the_reference_engines_chunks_do_not_change_a_bit(monkeypatch):
    trajectory = Trajectory(smooth(3, 9, 2, 2), 3, 20, Constant(0.5), RUN_ESTIMATORS[3], 2)
    whole = run("reference", trajectory, replications=50)
    monkeypatch.setattr(plain, "_CHUNK_BYTES", 8 * 2 * 9 * 2 * 7)
    assert np.array_equal(run("reference", trajectory, replications=50), whole)


def test_snapshots_do_not_change_the_path():
    base = {"problem": linear_kind(), "group_size": 3, "schedule": Constant(0.5)}
    for name in ("reference", "cpu"):
        every = run(name, Trajectory(**base, steps=12, snapshots=tuple(range(13))), replications=40)
        some = run(name, Trajectory(**base, steps=12, snapshots=(3, 11)), replications=40)
        assert np.array_equal(every[:, [3, 11]], some)
        short = run(name, Trajectory(**base, steps=3), replications=40)
        assert np.array_equal(short[:, 0], every[:, 3])
    compare(Trajectory(**base, steps=STEPS, snapshots=(0, STEPS)))


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_seeds_and_replications_are_different_runs(name):
    trajectory = Trajectory(smooth(3, 9, 2, 2), 3, 30, Constant(0.5))
    runs = [
        run(name, trajectory, seed=seed, first=first, replications=100)[:, 0, 0]
        for seed, first in ((0, 0), (1, 0), (0, 100), (0, 2**32), (0, FAR))
    ]
    together = np.concatenate(runs)
    assert len(np.unique(together)) == len(together)


def test_threads_serve_blocks():
    trajectory = Trajectory(smooth(3, 9, 2, 2), 3, 50, Constant(0.5))
    whole = run("cpu", trajectory, replications=1000)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(
            lambda first: run("cpu", trajectory, first=first, replications=250), range(0, 1000, 250)
        )
        assert np.array_equal(np.concatenate(list(parts)), whole)
