"""Location bandits: the two test beds of the theory, and landscapes with two hills."""

import numpy as np

from simulations.interior_problems.location_bandit import LocationBandit
from ustat_pg.policies import ArmLinearSoftmax


def bump(**options):
    """The first test bed of the theory."""
    return LocationBandit.bump([-1, 0, 1], [-0.7, 0.8, 0.3], **options)


def other_bump():
    """The second test bed of the theory."""
    return LocationBandit.bump([-0.5, 0.2, 1.4], [-0.7, 0.8, 0.6])


def hills(right, left, radius):
    """One prompt with two bumps of the success rate: (height, place) each."""
    arms = np.linspace(-2, 2, 9)
    success = sum(height * np.exp(-((arms - place) ** 2) / 0.2) for height, place in (right, left))
    chance = np.stack([success, 1 - success], axis=-1)[None]
    rewards = np.broadcast_to([1.0, 0.0], chance.shape)
    return LocationBandit([1.0], [[1.0]], arms, 0.35, rewards, chance, radius=radius)


def tangent(policy):
    """The linear policy that touches a bent one at its parameters."""
    named = policy.arrays()
    return ArmLinearSoftmax(named["features"], named["theta"], named.get("offset"))
