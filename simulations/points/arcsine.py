"""What figures draw of Proposition 13: where whole runs end, and what penalties take off."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ustat_pg.experiment import Linear, Point

from ..arcsine import STEM, Pull
from ..problems import Suite
from ..problems.paths import SPACES, TokenPath


def curves(suite: Suite) -> Iterator[Point]:
    """Both panels."""
    landscape = suite.landscapes["lenient"][0]
    for group_size in (2, 4, 8, 16, 32):
        pull, at = Pull(landscape, group_size, 600), {"panel": "ends", "group_size": group_size}
        predicted, _, drawn = pull.end(pull.best(pull.own))
        yield Point(STEM, "std", at, predicted, drawn)
        for rival, each in pull.afar.items():
            yield Point(STEM, f"rival: {rival}", at, pull.best(each))
    yield from _penalties()


def _penalties() -> Iterator[Point]:
    """Minus the work from the uniform policy to one that has turned to one of four tokens."""
    space = SPACES["one token"]
    reference = np.zeros((space.prefixes, space.symbols))
    for amount in (0.25, 0.75, 1.25, 1.75, 2.25, 2.75):
        path = TokenPath.between(space, reference, reference + amount * np.eye(space.symbols)[:1])
        at = {"panel": "penalties", "amount": amount}
        for kind, place in (("k1", "loss"), ("k2", "loss"), ("k3", "loss"), ("k3", "reward")):
            drawn = path.drawn(kind, place)
            weights = tuple((each, -share) for each, share in drawn.weights)
            value = path.divergence(kind, place)
            yield Point(STEM, f"{kind} in the {place}", at, value, Linear(drawn.cell, weights))
