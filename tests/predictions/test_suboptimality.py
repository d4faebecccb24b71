"""Lemma 6's bounds: the factors against quadratics, the closed forms against the recursion."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    mean_gap,
)
from ustat_pg.validation import InputError

LANDSCAPE = {"pl": 0.3, "smoothness": 1.1}
MADE = {**LANDSCAPE, "mse": 0.7}


def one_step(eta, low, high):
    """The factor on the gap: the curve of one step from 1 with no noise."""
    return bound_curve(1.0, [eta], pl=low, smoothness=high, mse=0.0)[1]


@pytest.mark.parametrize("eta", [0.1, 0.9, 1 / 1.1, 1.7, 2 / 1.1, 1.9, 5.0])
def test_the_factor_holds_for_every_quadratic_between_and_is_attained_beyond(eta):
    curvatures = np.linspace(0.3, 1.1, 81)
    true = (1 - eta * curvatures) ** 2
    factor = one_step(eta, 0.3, 1.1)
    assert (true <= factor * (1 + 1e-12) + 1e-15).all()
    if eta >= 2 / 1.1:
        assert factor == pytest.approx(true.max(), rel=1e-12)


def test_the_curve_by_hand():
    # eta .5: f = 1 - .3 + .3 1.1 .25 = .7825, added 1.1 .25 .7/2 = .09625;
    # eta 2 is beyond 2/L: f = 1.2^2 = 1.44, added 1.1 4 .7/2 = 1.54.
    found = bound_curve(2.0, [0.5, 2.0], **MADE)
    first = 0.7825 * 2 + 0.09625
    np.testing.assert_allclose(found, [2.0, first, 1.44 * first + 1.54], rtol=1e-14)


def test_noise_may_change_from_step_to_step():
    found = bound_curve(0.0, [0.5, 0.5], **LANDSCAPE, mse=[0.7, 0.0])
    np.testing.assert_allclose(found, [0.0, 0.09625, 0.7825 * 0.09625], rtol=1e-14)


@pytest.mark.parametrize("schedule", ["constant", "decay", "early beyond"])
def test_a_quadratic_with_equal_curvatures_attains_the_bound(schedule):
    t = np.arange(1, 201)
    rates = {"constant": np.full(200, 0.4), "decay": 2 / (t + 3), "early beyond": 5 / t}[schedule]
    curvature, trace, start = 0.8, 0.6, np.array([0.5, -1.2])
    gaps = mean_gap([curvature] * 2, np.diag([0.2, 0.4]), rates, start, steps=np.arange(201))
    bound = bound_curve(
        curvature / 2 * start @ start, rates, pl=curvature, smoothness=curvature, mse=trace
    )
    np.testing.assert_allclose(bound, gaps, rtol=1e-11)


@pytest.mark.parametrize("seed", range(20))
def test_no_quadratic_exceeds_the_bound(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    bends = rng.uniform(0.1, 2.0, size)
    root = rng.normal(size=(size, size))
    start = rng.normal(size=size)
    rates = rng.uniform(0.2, 12.0) / (np.arange(1, 301) + rng.uniform(0, 5))
    gaps = mean_gap(bends, root @ root.T, rates, start, steps=np.arange(301))
    bound = bound_curve(
        0.5 * bends @ start**2,
        rates,
        pl=bends.min(),
        smoothness=bends.max(),
        mse=np.trace(root @ root.T),
    )
    assert (gaps <= bound * (1 + 1e-10)).all()


def test_the_closed_form_exceeds_the_recursion_by_what_it_gives_away():
    eta, steps = 0.4, np.arange(61)
    ratio = 1 - 2 * 0.3 * eta + 0.3 * 1.1 * eta**2
    closed = constant_bound(steps, 2.0, eta, **MADE)
    curve = bound_curve(2.0, np.full(60, eta), **MADE)
    assert (closed > curve).all()
    np.testing.assert_allclose(
        closed - curve, ratio**steps * constant_floor(eta, **MADE), rtol=1e-10
    )


def test_the_recursion_reaches_the_floor_and_no_lower():
    for start in (0.0, 5.0):
        curve = bound_curve(start, np.full(2000, 0.3), **MADE)
        assert curve[-1] == pytest.approx(constant_floor(0.3, **MADE), rel=1e-12)
    # 1.1 .3 .7 / (2 .3 (2 - .33))
    assert constant_floor(0.3, **MADE) == pytest.approx(0.231 / 1.002, rel=1e-14)


@pytest.mark.parametrize("offset", [0, 10])
def test_under_decay_the_bound_tends_to_its_constant_at_order_one_over_t(offset):
    c, total = 8.0, 2**18
    rates = c / (np.arange(1, total + 1) + offset)
    times = 2 ** np.arange(11, 19)
    curve = bound_curve(1e-3, rates, **MADE)[times]
    wanted = decay_constant(c, **MADE)
    # 1.1 64 .7 / (2 3.8)
    assert wanted == pytest.approx(49.28 / 7.6, rel=1e-14)
    away = np.abs((times + offset) * curve / wanted - 1)
    slope = np.polyfit(np.log(times), np.log(away), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    assert away[-1] < 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound_curve(1.0, [0.5], **{**MADE, "pl": 1.2}), "no function has"),
        (lambda: bound_curve(1.0, [0.5], **{**MADE, "mse": -0.1}), "mse"),
        (lambda: bound_curve(-1.0, [0.5], **MADE), "gap is -1.0: it must be at least 0"),
        (lambda: bound_curve(1.0, [0.5, 0.0], **MADE), r"rates\[1\] is 0"),
        (lambda: bound_curve(1.0, np.full(400, 1e3), **MADE), "the bound overflows"),
        (lambda: constant_floor(2 / 1.1, **MADE), "must be below 2/L"),
        (lambda: constant_bound(1.5, 1.0, 0.5, **MADE), "steps is 1.5"),
        (lambda: decay_constant(1 / 0.6, **MADE), r"must be above 1/\(2μ\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
