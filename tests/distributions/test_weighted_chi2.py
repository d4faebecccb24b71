"""WeightedChi2: against 30-digit values, another method, and its own laws."""

import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf
from scipy import stats

from tests.distributions import oracle
from tests.support.refusals import refusals
from ustat_pg.distributions import WeightedChi2, bodies

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = json.loads((ROOT / "tests/data/weighted_chi2_reference.json").read_text())["sets"]
NAMES = [entry["name"] for entry in REFERENCE]

ABSOLUTE = 1e-12
RELATIVE = 1e-12
"""The tails' relative error allowed; 1e-8 was asked for."""

WEIGHTS = {
    "one": [2.5],
    "two": [1.0, 0.3],
    "far apart": [1.0, 1e-6],
    "pairs": [3.0, 3.0, 1.0, 1.0, 0.2, 0.2],
    "five": [1.0, 0.7, 0.4, 0.2, 0.1],
    "spike": [1.0, *np.linspace(1e-3, 2e-3, 40)],
    "geometric": list(0.6 ** np.arange(30)),
    "many": list(1 / np.arange(1.0, 201.0)),
    "equal": [0.02] * 50,
    "clusters": [1.0] * 7 + [0.1] * 20 + [0.0101] * 3,
}


def spread_points(law: WeightedChi2, count: int = 200) -> np.ndarray:
    """Points from a lower tail near 1e-250 to an upper one near 1e-250, dense in the body."""
    levels = np.geomspace(1e-250, 0.5, count // 2)
    x = np.unique(np.concatenate([law.ppf(levels), law.isf(levels)]))
    return x[x > 1e-300]


def close(found, wanted, relative):
    """Whether found is within a relative error of a value in many digits."""
    return abs(mpf(float(found)) - wanted) <= relative * abs(wanted)


# -- accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", REFERENCE, ids=NAMES)
@pytest.mark.parametrize("way", ["one by one", "array", "dense array"])
def test_the_reference_values(entry, way):
    law = WeightedChi2(entry["weights"])
    x = np.array([point["x"] for point in entry["points"]])
    if way == "one by one":
        cdf = np.array([law.cdf(float(one)) for one in x])
        sf = np.array([law.sf(float(one)) for one in x])
    elif way == "array":
        cdf, sf = law.cdf(x), law.sf(x)
    else:
        # So many neighbours that every panel is interpolated.
        crowd = np.concatenate([x, *(x * (1 + k * 1e-4) for k in range(1, 60))])
        cdf, sf = law.cdf(crowd)[: len(x)], law.sf(crowd)[: len(x)]
        assert [panel for panel in law._panels.values() if panel is not None]
    with mpmath.workdps(40):
        for k, point in enumerate(entry["points"]):
            wanted = {"cdf": mpf(point["cdf"]), "sf": mpf(point["sf"])}
            assert abs(mpf(float(cdf[k])) - wanted["cdf"]) <= ABSOLUTE
            assert abs(mpf(float(sf[k])) - wanted["sf"]) <= ABSOLUTE
            assert close(cdf[k], wanted["cdf"], RELATIVE)
            # 1 - cdf has lost its digits only where the data themselves are tails of cdf.
            assert close(sf[k], wanted["sf"], RELATIVE)


def five_hundred(index):
    """500 random weights, and a point in the lower tail or far in the upper."""
    weights = np.exp(np.random.default_rng([7, index]).uniform(np.log(1e-8), 0, 500))
    return weights, float(weights.sum() * (0.2 if index else 1.0) + (0 if index else 12 * 2**0.5))


SHAPES = (0, 1, 3, 4, 6, 7, 8, 9, 10, 15, 16, 26)
"""The seeds of two cases of each of the six shapes of weights."""

CASES = [oracle.case(np.random.default_rng([20260301, index]), 40) for index in SHAPES]


@pytest.mark.parametrize(("weights", "x"), [*CASES, five_hundred(0), five_hundred(1)])
def test_random_weights_and_points_against_many_digits(weights, x):
    result = oracle.errors(weights, x)
    assert result["absolute"] <= ABSOLUTE
    assert result["tail"] <= RELATIVE
    assert result["density"] <= RELATIVE


def test_logarithms_go_on_where_tails_underflow():
    law = WeightedChi2([1.0, 0.5, 0.5])
    for x in (5e3, 1e6):
        with mpmath.workdps(40):
            sf = oracle.tails([1.0, 0.5, 0.5], x)[1]
            assert law.sf(x) == 0
            assert close(law.logsf(x), mpmath.log(sf), 1e-14)
    small = WeightedChi2([1.0] * 100)
    with mpmath.workdps(40):
        cdf = oracle.tails([1.0] * 100, 1e-9)[0]
        assert small.cdf(1e-9) == 0
        assert close(small.logcdf(1e-9), mpmath.log(cdf), 1e-14)
    assert law.logsf(1e300) == pytest.approx(-5e299, rel=1e-12)
    assert np.isfinite(law.logsf(1.7e308))


def test_a_sum_that_does_not_settle_warns(monkeypatch):
    monkeypatch.setattr(bodies, "AGREE", -1.0)
    with pytest.warns(RuntimeWarning, match="settled to"):
        WeightedChi2([1.0, 0.5]).cdf(1.0)


# -- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WEIGHTS)
def test_quantiles_invert_both_tails(name):
    law = WeightedChi2(WEIGHTS[name])
    q = np.concatenate([np.geomspace(1e-300, 0.1, 60), np.linspace(0.1, 1, 60)[:-1]])
    # How far a tail moves when x moves by its last digits.
    for to, back in ((law.ppf, law.logcdf), (law.isf, law.logsf)):
        x = to(q)
        x, wanted = x[x > 1e-290], np.log(q[x > 1e-290])
        slope = np.abs(back(x * (1 + 1e-9)) - back(x * (1 - 1e-9))) / 2e-9
        error = np.abs(back(x) - wanted)
        assert (error <= 4e-15 * (np.abs(wanted) + slope + 100)).all()
    x = law.ppf(np.linspace(0.01, 0.99, 50))
    np.testing.assert_allclose(law.ppf(law.cdf(x)), x, rtol=1e-11)
    np.testing.assert_allclose(law.isf(law.sf(x)), x, rtol=1e-11)


@given(
    weights=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12),
    level=st.floats(1e-12, 1 - 1e-12),
)
def test_order_does_not_matter_and_more_weight_means_more(weights, level):
    law = WeightedChi2(weights)
    x = float(law.ppf(level))
    assert law.cdf(x) == WeightedChi2(weights[::-1]).cdf(x)
    assert law == WeightedChi2(weights[::-1])
    assert hash(law) == hash(WeightedChi2(weights[::-1]))
    assert law.cdf(x) == pytest.approx(level, rel=1e-11)
    larger = WeightedChi2([weights[0] * 1.5, *weights[1:]])
    assert larger.sf(x) > law.sf(x) * (1 - 1e-12)
    assert larger != law


@pytest.mark.parametrize("name", WEIGHTS)
def test_points_together_are_as_points_alone(name):
    law = WeightedChi2(WEIGHTS[name])
    generator = np.random.default_rng(5)
    x = np.concatenate([law.rvs(1500, generator), spread_points(law, 600)])
    together = law._values(x)
    alone = law._direct(x)
    assert [panel for panel in law._panels.values() if panel is not None]
    error = np.abs(together[:2] - alone[:2])
    assert (error <= 5e-13 * np.maximum(1, np.abs(alone[:2]) / 600)).all()
    np.testing.assert_array_equal(together[2], alone[2])
    # No earlier call matters, nor the order, nor the shape.
    np.testing.assert_array_equal(WeightedChi2(WEIGHTS[name]).cdf(x), law.cdf(x))
    np.testing.assert_array_equal(law.cdf(x[::-1])[::-1], law.cdf(x))
    np.testing.assert_array_equal(law.cdf(x[:1500].reshape(4, 5, -1)).ravel(), law.cdf(x[:1500]))


@pytest.mark.parametrize("name", WEIGHTS)
def test_quantiles_together_are_as_quantiles_alone(name):
    law = WeightedChi2(WEIGHTS[name])
    generator = np.random.default_rng(6)
    inner = [
        np.geomspace(1e-300, 0.1, 200),
        generator.random(800),
        1 - np.geomspace(1e-15, 0.1, 60),
    ]
    # Edges of panels too, where a point may be found in either.
    edges = [law._panel(True, index, 0, 0)[0] for index in range(3)]
    q = np.concatenate([*inner, law.cdf(edges)])
    for to in (law.ppf, law.isf):
        together = to(q)
        some = np.arange(len(q))[-60::4].tolist() + list(range(0, 1000, 67))
        alone = np.array([to(float(q[i])) for i in some])
        log, slope, _ = law._direct(np.maximum(alone, 1e-305))
        error = np.abs(together[some] / np.maximum(alone, 1e-305) - 1) * np.exp(slope)
        assert (error <= 5e-13 * np.maximum(1, np.abs(log) / 600))[alone > 1e-290].all()
        order = generator.permutation(len(q))
        np.testing.assert_array_equal(to(q[order]), together[order])
        ends = to([*q, np.nan, 0.0, 1.0, -0.1, 1.1])
        np.testing.assert_array_equal(ends[:-5], together)
        np.testing.assert_array_equal(ends[-5:], to([np.nan, 0.0, 1.0, -0.1, 1.1]))
        np.testing.assert_array_equal(to(q[:900].reshape(3, 30, 10)).ravel(), to(q[:900]))
    assert [panel for panel in law._panels.values() if panel is not None]
    # The tail of a quantile, and the tail found again: each off by its 5e-13.
    for to, back in ((law.ppf, law.cdf), (law.isf, law.sf)):
        held = to(q) > 1e-290
        np.testing.assert_allclose(back(to(q))[held], q[held], rtol=1.2e-12)


def test_many_quantiles_are_equal_levels_too():
    """Twenty of one level, of a law of one weight that occurs often."""
    law = WeightedChi2([0.02] * 50)
    q = np.repeat([1e-200, 0.3, 1 - 1e-12], 20)
    np.testing.assert_allclose(law.ppf(q), 0.02 * stats.chi2(50).ppf(q), rtol=1e-11)


def test_threads_agree():
    law = WeightedChi2(WEIGHTS["five"])
    x = law.rvs(4000, 1)
    wanted = WeightedChi2(WEIGHTS["five"]).cdf(x)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: law.cdf(x), range(8)):
            np.testing.assert_array_equal(result, wanted)


# -- face -----------------------------------------------------------------------------------------

POINTS = [np.nan, -np.inf, -1.0, 0.0, 1e-300, 1e-5, 1.0, 30.0, 5000.0, 1e300, np.inf]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ["cdf", "sf", "logcdf", "logsf", "pdf", "logpdf"])
def test_ends_and_shapes_are_scipys(count, name):
    law, other = WeightedChi2([1.0] * count), stats.chi2(count)
    function, wanted = getattr(law, name), getattr(other, name)
    result = function(POINTS)
    with np.errstate(all="ignore"):
        expected = wanted(POINTS)
    # SciPy's logarithms are infinite where tails underflow, and its density at infinity may be NaN.
    beyond = [1e-300, 5000.0, 1e300] if "log" in name else []
    comparable = ~np.isin(POINTS, [*beyond, *([np.inf] if "pdf" in name else [])])
    assert "pdf" not in name or result[-1] == (-np.inf if "log" in name else 0)
    np.testing.assert_allclose(result[comparable], expected[comparable], rtol=1e-12)
    for point, value in zip(POINTS, result, strict=True):
        alone = function(point)
        assert np.ndim(alone) == 0
        assert isinstance(alone, float)
        np.testing.assert_allclose(alone, value, rtol=1e-14)
    assert function(3) == function(3.0)
    assert function(np.ones((2, 0, 3))).shape == (2, 0, 3)
    assert function([[1.0, 2.0]]).shape == (1, 2)


@pytest.mark.parametrize("weights", [[1.7], [3.0, 0.7], [0.9, 0.9], [3.0, 0.7, 0.2]])
def test_the_density_at_0_is_its_limit(weights):
    law = WeightedChi2(weights)
    near = law.pdf(1e-280)
    limit = {1: math.inf, 2: near, 3: 0.0}[len(weights)]
    assert law.pdf(0.0) == pytest.approx(limit, rel=1e-12)
    assert near > 1e100 if len(weights) == 1 else near < 1
    if len(weights) == 2:
        assert law.pdf(0.0) == pytest.approx(1 / (2 * math.sqrt(math.prod(weights))), rel=1e-13)


@pytest.mark.parametrize(
    "other", [[3.0, 1.0, 1.0], [3.0, 1.0], [3.0, 3.0, 1.0, 1.0], [3.0, 3.0, 1.1], [3.0]]
)
def test_laws_of_other_weights_are_other_laws(other):
    """The same weights in other numbers, fewer of them, one that differs a little."""
    law = WeightedChi2([3.0, 3.0, 1.0])
    assert law != WeightedChi2(other)
    assert hash(law) != hash(WeightedChi2(other))
    assert law.cdf(2.0) != WeightedChi2(other).cdf(2.0)
    assert {law, WeightedChi2([1.0, 3.0, 3.0])} == {law}


def test_quantile_ends_are_scipys():
    law = WeightedChi2([1.0])
    q = [np.nan, -0.1, 0.0, 1.0, 1.1]
    np.testing.assert_array_equal(law.ppf(q), [np.nan, np.nan, 0.0, np.inf, np.nan])
    np.testing.assert_array_equal(law.isf(q), [np.nan, np.nan, np.inf, 0.0, np.nan])
    assert isinstance(law.ppf(0.5), float)
    # Below the least double.
    assert law.ppf(1e-300) == 0
    assert WeightedChi2([1.0, 1.0]).ppf(1e-310) == pytest.approx(2e-310, rel=1e-10)
    assert WeightedChi2([1e200, 1e200]).ppf(1e-310) == pytest.approx(2e-110, rel=1e-12)


def test_moments():
    weights = np.array([2.0, 1.0, 0.25])
    law = WeightedChi2(weights)
    assert law.mean() == 3.25
    assert law.var() == pytest.approx(2 * (weights**2).sum(), rel=1e-15)
    assert law.std() == pytest.approx(math.sqrt(law.var()), rel=1e-15)
    assert law.cumulant(3) == pytest.approx(8 * (weights**3).sum(), rel=1e-15)


def test_draws():
    law = WeightedChi2([1.0, 0.5, 0.5, 0.1])
    assert isinstance(law.rvs(random_state=1), float)
    assert law.rvs(1, 1).shape == (1,)
    assert law.rvs((2, 0), 1).shape == (2, 0)
    np.testing.assert_array_equal(law.rvs(5, 3), law.rvs(5, np.random.default_rng(3)))
    assert law.rvs(3, np.random.RandomState(0)).shape == (3,)
    assert law.rvs(2).tolist() != law.rvs(2).tolist()
    generator = np.random.default_rng(11)
    first = law.rvs(4, generator)
    assert first.tolist() != law.rvs(4, generator).tolist()
    draws = law.rvs((200, 100), 2)
    assert stats.kstest(draws.ravel(), law.cdf).pvalue > 1e-3
    wrong = WeightedChi2([1.0, 0.5, 0.5, 0.2])
    assert stats.kstest(draws.ravel(), wrong.cdf).pvalue < 1e-9


test_bad_weights_are_refused = refusals(
    ([], "weights has shape (0,): it must not be empty"),
    ([1.0, 0.0], "weights[1] is 0.0: weights must be positive"),
    ([1.0, -2.0], "weights[1] is -2.0: weights must be positive"),
    ([1.0, np.inf], "weights holds inf at [1]: all entries must be finite"),
    ([[1.0, 2.0]], "weights has shape (1, 2): it must have 1 dimension(s)"),
    of=WeightedChi2,
    literal=True,
)


def test_extreme_scales_stay_finite_and_silent():
    with np.errstate(all="raise"):
        for weights in ([1.7e308, 1.7e308], [5e-324], [1e300, 1e-10], [1.0] * 500):
            law = WeightedChi2(weights)
            for name in ("cdf", "sf"):
                values = getattr(law, name)([5e-324, 1e-300, 1e-150, 1.0, 1e150, 1.7e308])
                assert ((values >= 0) & (values <= 1)).all()
            law.ppf([1e-300, 0.5, 0.999])
    assert WeightedChi2([1e300]).var() == math.inf
    assert WeightedChi2([1e300]).std() == pytest.approx(math.sqrt(2) * 1e300, rel=1e-15)


def test_it_prints_compares_and_pickles():
    law = WeightedChi2([3.0, 1.0])
    assert repr(law) == "WeightedChi2([3., 1.])"
    assert "..." in repr(WeightedChi2(np.arange(1.0, 100.0)))
    assert law != "law"
    law.cdf(np.linspace(1, 2, 100))
    assert pickle.loads(pickle.dumps(law)) == law
    with pytest.raises(ValueError, match="read-only"):
        law.weights[0] = 1
    given_weights = np.array([1.0, 2.0])
    kept = WeightedChi2(given_weights)
    given_weights[0] = 100
    assert kept.mean() == 3
