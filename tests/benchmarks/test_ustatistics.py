"""The benchmark of the fast U-statistic, tiny: what it times is the same number everywhere."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from benchmarks import ustatistics as benchmark
from benchmarks.ustatistics import COMPILED, GENERAL, KERNEL, REWRITTEN, Peer

needs_u_stats = pytest.mark.skipif(find_spec("u_stats") is None, reason="u-stats not installed")


def peers():
    return benchmark.u_stats_peers() + benchmark.loop_peers()


@needs_u_stats
def test_every_way_has_a_peer():
    assert {peer.way for peer in peers()} == {KERNEL, REWRITTEN, GENERAL, COMPILED}


@pytest.mark.parametrize(("n", "d"), [(2, 1), (9, 1), (9, 5)])
def test_every_peer_gives_the_sample_covariance(n, d):
    scores, rewards = benchmark.sample(n, d)
    expected = [np.cov(scores[:, k], rewards)[0, 1] for k in range(d)]
    for peer in peers():
        value = peer(scores, rewards)
        np.testing.assert_allclose(value, expected, rtol=1e-11, err_msg=peer.form)
        assert benchmark.seconds_of(peer, scores, rewards) > 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s, z: (s - s.mean(0)).T @ (z - z.mean()) / len(z),
        lambda s, z: benchmark.double_loop(s, z) * (1 + 1e-9),
        lambda s, z: benchmark.double_loop(s, z)[:1],
        lambda s, z: benchmark.double_loop(s, z) * np.nan,
    ],
    ids=["V-statistic", "a digit off", "one coordinate", "nan"],
)
def test_a_peer_with_another_value_is_refused(wrong):
    peer = Peer(KERNEL, "wrong", wrong)
    with pytest.raises(ValueError, match="wrong: another value than ours"):
        benchmark.compare([peer], 9, 5, 1)


@needs_u_stats
def test_tensors_that_do_not_fit_are_made_in_blocks(monkeypatch):
    scores, rewards = benchmark.sample(6, 7)
    whole = {peer.form: peer(scores, rewards) for peer in benchmark.u_stats_peers()}
    monkeypatch.setattr(benchmark, "MEMORY", 3 * 2 * 8 * 6 * 6)
    for peer in benchmark.u_stats_peers():
        assert peer.block(6) == 3 or peer.way == REWRITTEN
        np.testing.assert_allclose(peer(scores, rewards), whole[peer.form], rtol=1e-12)


def test_what_takes_too_long_is_extrapolated_and_marked(monkeypatch):
    monkeypatch.setattr(benchmark, "LONGEST", 0.0)
    for peer in benchmark.loop_peers():
        _, (timing,) = benchmark.compare([peer], 8, 3, 1)
        assert not timing.whole
        assert timing.cells()[1].startswith("~ ")


def test_the_fastest_form_of_a_way_is_chosen(monkeypatch):
    forms = [Peer(KERNEL, form, benchmark.double_loop) for form in ("slow", "fast", "middling")]
    seconds = {"slow": 3.0, "fast": 1.0, "middling": 2.0}
    monkeypatch.setattr(benchmark, "estimate", lambda peer, s, z: (seconds[peer.form], s.shape[1]))
    _, (timing,) = benchmark.compare(forms, 9, 2, 1)
    assert timing.peer.form == "fast"


def test_ratios_are_of_the_least_times_and_of_rounds():
    peer = benchmark.loop_peers()[0]
    timing = benchmark.Timing(peer, (1e-6, 2e-6, 4e-6), (2e-4, 1e-4, 8e-4), 1, whole=True)
    assert timing.ratio == pytest.approx(100)
    assert timing.cells() == ["NumPy", "100 µs", "100 [200]"]
    reached = {(8, 1): timing, (8, 9): benchmark.Timing(peer, (1.0,), (40.0,), 9, whole=True)}
    line = benchmark.verdict(KERNEL, reached)
    assert "in 1 of 2 cases. Below" in line
    # 8 x 9 numbers of 8 bytes in 0.8 s.
    assert line.endswith("40 at n = 8, d = 9 (7.2e-07 GB/s).")


@pytest.mark.parametrize("without", [False, True])
def test_the_script_prints_its_tables_or_says_what_is_not_there(without, monkeypatch, capsys):
    if without:
        monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    arguments = ["--rounds", "1", "--samples", "8", "--dimensions", "1", "3"]
    assert benchmark.main(arguments) == 0
    out = capsys.readouterr().out
    installed = find_spec("u_stats") is not None and not without
    assert ("u-stats is not installed" in out) != installed
    assert (KERNEL in out) == installed
    assert COMPILED in out
    rows = [line.split("|")[1:3] for line in out.splitlines() if line.startswith("| 8")]
    tables = 2 if installed else 1
    assert [[cell.strip() for cell in row] for row in rows] == [["8", "1"], ["8", "3"]] * tables
