"""Which public functions the claims read."""

from __future__ import annotations

import json

import pytest

from simulations import coverage
from simulations.__main__ import main
from simulations.coverage import UNREAD, public, reading, unmoved


def test_reasons_are_of_public_functions():
    assert set(UNREAD) <= {each.name for each in public()}
    assert all(UNREAD.values())


def test_a_function_is_read_where_a_prediction_follows_it():
    found = reading(["minibatch"])

    assert found["predictions.gradient_mse"] == ("minibatch",)
    assert found["moments.Moments.centred"] == ("minibatch",)
    assert found["estimators.grpo"] == ("minibatch",)
    # Asked for by nobody, and for a rival alone.
    assert found["predictions.kl_penalty"] == ()
    assert found["estimators.maxrl"] == ()


def test_list_shows_who_reads_what_and_why_nobody_does(monkeypatch, capsys):
    found = {"predictions.gradient_mse": ("mse", "oracle"), "estimators.best": ()}
    still = []
    monkeypatch.setattr(coverage, "reading", lambda: found)
    monkeypatch.setattr(coverage, "unmoved", lambda: tuple(still))

    assert main(["list", "--coverage", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["read"] == {"predictions.gradient_mse": ["mse", "oracle"]}
    assert said["unread"] == {"estimators.best": UNREAD["estimators.best"]}

    assert said["unmoved"] == []

    still.append("predictions.gradient_mse(design)")
    assert main(["list", "--coverage"]) == 1
    assert "every check: predictions.gradient_mse(design)" in capsys.readouterr().out
    still.clear()
    found["predictions.new"] = ()
    assert main(["list", "--coverage"]) == 1
    assert "no reason is given" in capsys.readouterr().out


def test_an_option_is_moved_where_a_claim_gives_another_value():
    left = unmoved(["mse"])
    assert "predictions.gradient_mse(constant)" not in left
    assert "predictions.gradient_mse(batch_size)" not in left
    # The library gives it itself; the claim of minibatches does, too.
    assert "predictions.gradient_covariance(design)" in left
    assert "predictions.gradient_covariance(design)" not in unmoved(["minibatch"])


@pytest.mark.slow
def test_every_option_is_moved_by_some_check():
    assert unmoved() == ()


@pytest.mark.slow
def test_what_has_a_reason_is_not_read(monkeypatch):
    asked = tuple(each for each in public() if each.name in UNREAD)
    monkeypatch.setattr(coverage, "public", lambda: asked)
    # The claims that take long to make come last, when little is left to look for.
    found = reading(sorted(coverage.STEMS, key=("suboptimality", "limit_law").count), enough=True)

    assert set(found) == set(UNREAD)
    assert not any(found.values())
