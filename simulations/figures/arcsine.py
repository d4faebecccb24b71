"""The figure of Proposition 13 (arcsine): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arcsine import ARCSINE, RETURN, Pull
from ..evidence import Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..problems import Suite
from ..problems.paths import SPACES, TokenPath

STEM = "arcsine"

AMOUNTS = (0.25, 0.75, 1.25, 1.75, 2.25, 2.75)
"""The changes of a logit that are simulated; the lines have every sixteenth."""

FIGURES = (
    Figure(
        "arcsine",
        "Where normalised training ends, and which KL is taken off",
        "On the left the parameter at which whole training runs end, against the group size: it starts "
        "at the level of the expected reward's optimum and climbs towards that of the arcsine; simulated "
        "points lie on the predicted curve. On the right what four KL penalties take off, against how "
        "far the policy has turned from its reference: k1 in the loss takes off nothing, k2 and k3 in "
        "the loss at first about as much and then k3 more, and k3 in the reward, which starts level, in "
        "the end less than nothing.",
        STEM,
        by="panel",
        panels=(
            Panel(
                "whole runs, divided by std",
                "ends",
                y=Axis("parameter after training"),
                lines=(
                    Line(f"rival: {RETURN}", "expected reward\n(rival)", "rival"),
                    Line(f"rival: {ARCSINE}", "arcsine (rival),\nthe limit", "second rival"),
                    Line("std", "simulated, on the\nBernstein optimum", "alone"),
                ),
            ),
            Panel(
                "KL penalties, one token",
                "penalties",
                x=Axis("change of one token's logit", "amount"),
                y=Axis("penalty that its gradient takes off"),
                lines=(
                    Line("k1 in the loss", "k1 in the loss: 0", "red"),
                    Line("k2 in the loss", "k2: KL(π‖ref)", "blue"),
                    Line("k3 in the loss", "k3: KL(ref‖π)", "orange"),
                    Line("k3 in the reward", look="pink"),
                ),
                levels=(0,),
            ),
        ),
        names="ends",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    landscape = suite.landscapes["lenient"][0]
    for group_size in (2, 4, 8, 16, 32):
        pull, at = Pull(landscape, group_size, 600), {"panel": "ends", "group_size": group_size}
        predicted, _, drawn = pull.end(pull.best(pull.objective))
        yield Point(STEM, "std", at, predicted, drawn)
        for rival, objective in pull.afar.items():
            yield Point(STEM, f"rival: {rival}", at, pull.best(objective))
    yield from _penalties()


def _penalties() -> Iterator[Point]:
    """Minus the work from the uniform policy to one that prefers one of four tokens."""
    space = SPACES["one token"]
    reference = np.zeros((space.prefixes, space.symbols))
    for amount in (np.arange(4, 45) / 16).tolist():
        path = TokenPath.between(space, reference, reference + amount * np.eye(space.symbols)[:1])
        at = {"panel": "penalties", "amount": amount}
        for kind, place in (("k1", "loss"), ("k2", "loss"), ("k3", "loss"), ("k3", "reward")):
            drawn = path.drawn(kind, place).times(-1.0) if amount in AMOUNTS else None
            value = path.divergence(kind, place)
            yield Point(STEM, f"{kind} in the {place}", at, value, drawn)
