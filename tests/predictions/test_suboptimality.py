"""Lemma 6's bounds: the factors against quadratics, the curve by hand; closed forms are the claims'."""

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.predictions import (
    bound_curve,
    constant_bound,
    constant_floor,
    decay_constant,
    mean_gap,
)

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
    result = bound_curve(2.0, [0.5, 2.0], **MADE)
    first = 0.7825 * 2 + 0.09625
    np.testing.assert_allclose(result, [2.0, first, 1.44 * first + 1.54], rtol=1e-14)


def test_noise_may_change_from_step_to_step():
    result = bound_curve(0.0, [0.5, 0.5], **LANDSCAPE, mse=[0.7, 0.0])
    np.testing.assert_allclose(result, [0.0, 0.09625, 0.7825 * 0.09625], rtol=1e-14)


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


test_bad_input_is_refused = refusals(
    (lambda: bound_curve(1.0, [0.5], **{**MADE, "pl": 1.2}), "no function has"),
    (lambda: bound_curve(1.0, [0.5], **{**MADE, "mse": -0.1}), "mse"),
    (lambda: bound_curve(-1.0, [0.5], **MADE), "gap is -1.0: it must be at least 0"),
    (lambda: bound_curve(1.0, [0.5, 0.0], **MADE), r"rates\[1\] is 0"),
    (lambda: bound_curve(1.0, np.full(400, 1e3), **MADE), "the bound overflows"),
    (lambda: constant_floor(2 / 1.1, **MADE), "must be below 2/L"),
    (lambda: constant_bound(1.5, 1.0, 0.5, **MADE), "steps is 1.5"),
    (lambda: decay_constant(1 / 0.6, **MADE), r"must be above 1/\(2μ\)"),
)
