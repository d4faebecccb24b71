"""The example of prompts drawn by a law: a few steps of each method."""

import runpy
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "train_drawn_prompts.py"


def test_every_method_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    names = runpy.run_path(str(FILE))
    trained = names["trained"]
    monkeypatch.setitem(trained.__globals__, "STEPS", 30)
    start = trained("data", 0.0, 1)
    returns = {method: trained(method, 64.0, 1) for method in names["METHODS"]}
    assert len(set(returns.values())) == len(returns)
    assert all(each > start for each in returns.values())
