"""Laws that hold for every engine of whole runs, so that a new engine is one line.

An engine is compared with ``reference``, whose numbers are loops that can be read.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulations.engines import Ball, Decay
from simulations.engines.runs.lanes.plan import FEW_CONTEXTS, LANES
from simulations.engines.runs.trajectory import Trajectory
from tests.support.bends import with_bends
from tests.support.laws import FAR, LAST, the_same_at_once
from tests.support.problems import smooth
from ustat_pg.engines import Estimator
from ustat_pg.problems import SoftmaxBandit

TOLERANCE = 1e-9
"""The engines' exponentials differ in the last place. A word w is a draw of another arm where
w 2⁻³² C_K lies between the two values of Cₖ: with probability 1e-15 or so a draw."""


@dataclass(frozen=True)
class Subject:
    """An engine under test, and its runs."""

    name: str
    steps: int = 200
    replications: int = 60

    def run(self, trajectory: Trajectory, **where: int) -> NDArray[np.float64]:
        """The runs of a trajectory by the engine."""
        return trajectory.run(self.name, **where)


SUBJECTS = {name: Subject(name) for name in ("reference", "cpu")}
LAYOUTS = {
    "one prompt": (1, 9, 2, 2, 2, 1, "iid"),
    "three prompts": (3, 9, 2, 2, 3, 1, "iid"),
    "many arms": (3, 18, 4, 3, 8, 2, "iid"),
    "epochs of one step": (4, 2, 1, 1, 5, 4, "epochs"),
    "epochs of two steps": (6, 5, 3, 4, 2, 3, "epochs"),
    "epochs, a prompt a step": (4, 5, 3, 3, 2, 1, "epochs"),
    "beyond few contexts": (FEW_CONTEXTS + 1, 6, 2, 2, 4, 5, "iid"),
    "batch beyond the prompts": (4, 5, 3, 3, 5, 7, "iid"),
    "many prompts": (40, 3, 2, 2, 2, 7, "iid"),
}
"""Contexts, arms, d, values of rewards, G, B and the design."""


SETS = {
    "ball": Ball([0.1, 0.0, -0.2], 0.4),
    "within a span": Ball(
        [0.1, 0.0, -0.2], 0.4, np.linalg.qr(np.arange(6.0).reshape(3, 2) ** 2)[0]
    ),
}
"""Problems of three parameters."""


def path(
    layout: str, estimator: Estimator, steps: int, *, bent: bool = False, binary: bool = False,
    **asked: Any,
) -> Trajectory:  # fmt: skip
    """Runs of a layout whose rates decay and whose starts are spread; rewards may be 0 and 1."""
    *shape, group, batch, design = LAYOUTS[layout]
    problem = smooth(*shape, uniform=design == "epochs")
    if binary:
        rewards = (problem.reward_values > 0).astype(float)
        arrays = problem.policy, problem.context_probs, rewards, problem.reward_probs
        problem = SoftmaxBandit(*arrays)
    asked = {
        "start_scale": np.linspace(0.1, 0.5, problem.d),
        # Bends of negative sign may drive θ to infinity, where rounding grows with it.
        "projection": Ball(np.zeros(problem.d), 2.0) if bent else None,
        "snapshots": (0, 1, 7, steps),
    } | asked
    problem = with_bends(problem) if bent else problem
    schedule = Decay(3.0, 20.0)
    return Trajectory(problem, group, steps, schedule, estimator, batch, design, **asked)


def same_path(subject: Subject, trajectory: Trajectory, seed: int = 4) -> None:
    """The reference engine's θ, in every replication: not one draw went to another outcome."""
    where = {"seed": seed, "first": FAR, "replications": subject.replications}
    plain = trajectory.run("reference", **where)
    result = subject.run(trajectory, **where)
    assert result.dtype == np.float64
    assert result.shape == plain.shape
    assert result.shape == (subject.replications, len(trajectory.snapshots), trajectory.problem.d)
    assert np.abs(result - plain).max() < TOLERANCE, np.abs(result - plain).max()
    assert np.abs(result[:, -1] - result[:, 0]).max() > 1e-3


def blocks_merge(subject: Subject, trajectory: Trajectory) -> None:
    """Parts of a block are the block, wherever it is cut, up to the last address there is."""
    total = 2 * LANES + 9
    cuts = [0, 1, total // 3, total // 2 + 3, total - 1, total]
    for begin in (FAR, LAST - total):
        whole = subject.run(trajectory, seed=2, first=begin, replications=total)
        parts = [
            subject.run(trajectory, seed=2, first=begin + a, replications=b - a)
            for a, b in pairwise(cuts)
        ]
        assert np.array_equal(np.concatenate(parts), whole)


def same_seed_same_bytes(subject: Subject, trajectory: Trajectory) -> None:
    """A block drawn again is equal to the last bit; other seeds and replications are other runs."""
    places = ((0, 0), (0, 0), (1, 0), (0, 100), (0, 2**32), (0, FAR))
    one, again, *others = (
        subject.run(trajectory, seed=seed, first=first, replications=40)[:, -1, 0]
        for seed, first in places
    )
    assert one.tobytes() == again.tobytes()
    together = np.concatenate([one, *others])
    assert len(np.unique(together)) == len(together)


def snapshots_change_no_path(subject: Subject, trajectory: Trajectory) -> None:
    """Fewer snapshots are some of all, and fewer steps the first of more."""
    kept = range(trajectory.steps + 1)
    every = subject.run(replace(trajectory, snapshots=tuple(kept)), replications=20)
    some = subject.run(replace(trajectory, snapshots=(3, 11)), replications=20)
    assert np.array_equal(every[:, [3, 11]], some)
    short = subject.run(replace(trajectory, steps=3, snapshots=(3,)), replications=20)
    assert np.array_equal(short[:, 0], every[:, 3])


def threads_serve_blocks(subject: Subject, trajectory: Trajectory) -> None:
    """Blocks run at the same time are those run one after the other."""

    def block(first: int) -> bytes:
        return subject.run(trajectory, first=first, replications=25).tobytes()

    the_same_at_once(block)
