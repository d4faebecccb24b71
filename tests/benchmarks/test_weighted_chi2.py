"""The benchmark of WeightedChi2: its peers compute the law, and what is not valid is called so."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks import weighted_chi2
from benchmarks.weighted_chi2 import Peer, Row, cases

CASES = {case.name: case for case in cases(20)}
PAIRS = CASES["pairs_3_1_0.2"]


@pytest.mark.parametrize("name", ["Imhof, quad", "Imhof, quad, compiled", "Davies' sum, NumPy"])
@pytest.mark.parametrize("case", ["pairs_3_1_0.2", "near_equal10_1e-3", "geom20_0.7"])
def test_the_inversions_agree_with_the_reference(name, case):
    (peer,) = (peer for peer in weighted_chi2.peers() if peer.name == name)
    found = [peer.one(CASES[case].weights, float(x)) for x in CASES[case].x]
    np.testing.assert_allclose(found, CASES[case].cdf, atol=1e-8, rtol=0)
    if peer.many is not None:
        many = peer.many(CASES[case].weights, CASES[case].x)
        np.testing.assert_allclose(many, CASES[case].cdf, atol=1e-8, rtol=0)


def test_every_case_has_its_reference():
    assert len(cases()) == 8
    assert {len(case.weights) for case in cases()} == {1, 2, 6, 10, 20, 100, 500}
    for case in cases():
        assert case.x.shape == case.cdf.shape == case.sf.shape
        assert case.points.shape == (1000,)
        assert 0.05 < case.cdf[np.flatnonzero(case.x == case.middle)[0]] < 0.95


@pytest.mark.skipif(not find_spec("momentchi2"), reason="momentchi2 is an extra")
def test_moment_methods_are_close_but_not_valid():
    for peer in weighted_chi2.peers():
        if peer.name in ("momentchi2 sw", "momentchi2 hbe", "momentchi2 wf"):
            row = weighted_chi2.theirs(peer, PAIRS)
            assert 1e-3 < row.error < 0.05
            assert not row.valid


def test_a_peer_that_raises_is_not_valid():
    def broken(weights, x):
        raise ValueError

    row = weighted_chi2.theirs(Peer("broken", broken), PAIRS)
    assert row.error == np.inf
    assert not row.valid


def test_a_wrong_law_stops_the_script(monkeypatch):
    class Wrong(weighted_chi2.WeightedChi2):
        def cdf(self, x):
            return super().cdf(x) * (1 + 1e-7)

    monkeypatch.setattr(weighted_chi2, "WeightedChi2", Wrong)
    with pytest.raises(SystemExit, match="misses the reference on pairs"):
        weighted_chi2.ours(PAIRS)


def test_the_verdict_names_the_fastest_valid_peer():
    rows = [
        Row("WeightedChi2", 1e-6, 1e-7, False, 1e-15, 1e-14),
        Row("fast and wrong", 1e-7, 1e-8, False, 1e-3, 1.0),
        Row("slow", 1e-3, 1e-3, True, 1e-9, 1.0),
        Row("quick", 5e-5, 2e-6, False, 1e-8, 1.0),
    ]
    line = weighted_chi2.verdict(PAIRS, rows)
    assert "one point 50 (quick), 1,000 20 (quick)" in line
    assert "no peer is valid" in weighted_chi2.verdict(PAIRS, rows[:2])


def test_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(weighted_chi2, "cases", lambda most=None: (PAIRS,))
    assert weighted_chi2.main(["--quick"]) == 0
    out = capsys.readouterr().out
    assert "Davies' sum, NumPy" in out
    assert "- pairs_3_1_0.2: fastest valid" in out
