"""Figures as data: what stands unless it is given."""

from __future__ import annotations

from fractions import Fraction

from simulations.evidence.figure import (
    GROUP_SIZE,
    RATE_OF_SUCCESS,
    Axis,
    Curve,
    Figure,
    Line,
    Panel,
)


def test_what_a_figure_is_unless_it_is_said():
    assert (GROUP_SIZE.column, GROUP_SIZE.scale, GROUP_SIZE.limits) == (
        "group_size",
        "log",
        (None, None),
    )
    assert (RATE_OF_SUCCESS.column, RATE_OF_SUCCESS.scale) == ("pass_rate", "linear")
    assert RATE_OF_SUCCESS.limits == (0, 1)
    ticks = {place: float(Fraction(text)) for place, text in RATE_OF_SUCCESS.ticks.items()}
    assert ticks == {place: place for place in (0, 1 / 4, 1 / 2, 3 / 4, 1)}
    line, curve, panel = Line("a"), Curve(abs), Panel()
    assert (line.label, line.look, line.at, line.aside, line.cut) == ("", "", {}, 0, False)
    assert (curve.label, curve.look, curve.through) == ("", "rival", False)
    assert (panel.of, panel.x, panel.lines, panel.names, panel.band) == (None, None, (), None, None)
    assert (panel.plus, panel.over, panel.precise) == (0.0, "", False)
    figure = Figure("f", "a title", "what is seen", None)
    assert (figure.x, figure.y, figure.by, figure.panels) == (GROUP_SIZE, Axis(""), "", (panel,))
    assert (figure.names, figure.height, figure.draw) == ("", 2.5, None)
