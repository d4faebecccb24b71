"""The figure of Theorem 12 (practical_mse): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.predictions import count_table

from ..engines import PracticalError, RatioBias, Rule
from ..evidence import Linear, Point
from ..evidence.figure import Axis, Figure, Line, Panel
from ..practical_mse import CLIP, GROUP, predicted
from ..problems import Suite
from ..problems.batches import batches

STEM = "practical_mse"

MEASURED = 32
"""Distances to a doubling; where clipping sets in, a coarse grid would draw jumps as slopes."""


DISTANCES = tuple(2.0 ** (number / MEASURED - 4) for number in range(5 * MEASURED + 1))
"""The distances in the figure, from 1/16 to 2; each doubling is simulated."""


SHOWN = {
    "token": Rule(),
    "token, clipped": Rule(clip=CLIP),
    "prefix": Rule("prefix"),
    "gspo": Rule("gspo"),
    "sequence": Rule("sequence"),
}
"""The rules in the figure, without a penalty."""


FIGURES = (
    Figure(
        "practical_mse",
        "Bias and variance of practical GRPO as the policy moves away",
        "Squared bias and variance of the gradient against the distance of the policy from the one that "
        "drew the outputs, for five ways to weight tokens: the squared biases rise with slope two, "
        "that of the token ratio fastest, and the clipped one leaps far above where clipping sets in and "
        "its variance falls; the sequence ratio has no bias; simulated points lie on the lines.",
        "practical_mse",
        x=Axis("distance from the policy that drew", "distance", "log"),
        lines=(
            Line("token", look="orange"),
            Line("token, clipped", "token, clipped\nat 0.2", "red"),
            Line("prefix", "up to the token", "green"),
            Line("gspo", "geometric mean\n(GSPO)", "blue"),
            Line("sequence", look="black"),
        ),
        by="panel",
        panels=tuple(
            Panel(of, of, y=Axis(f"{of} of the gradient", scale="log"))
            for of in ("squared bias", "variance")
        ),
        names="ends",
        height=2.9,
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """Squared bias and variance against the distance, rule by rule."""
    yield from points("tokens")


def points(on: str) -> Iterator[Point]:
    """The same plot for a kind of network, with outputs of three tokens."""
    batch = next(batch for batch in batches(on, 0, 0) if batch.most_tokens == 3)
    weight = float(count_table("std", GROUP).weight(batch.problem.moments().value)[0])
    for number, distance in enumerate(DISTANCES):
        cell = batch.cell(GROUP, distance, weights=(weight,))
        for name, rule in SHOWN.items():
            prediction = predicted(batch, distance, rule)
            bias, error = RatioBias(rule), PracticalError(rule)
            for panel, value, weights in (
                ("squared bias", prediction.squared_bias, ((bias, 1.0),)),
                ("variance", prediction.variance, ((error, 1.0), (bias, -1.0))),
            ):
                if value > 1e-12:
                    at = {"panel": panel, "distance": distance}
                    measured = Linear(cell, weights) if number % MEASURED == 0 else None
                    yield Point(STEM, name, at, value, measured)


def curves_on_networks(suite: Suite) -> Iterator[Point]:
    yield from points(suite.on)
