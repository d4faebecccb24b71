"""Planted mistakes in the compiled bodies must show in the values; other paths must not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.distributions import oracle
from tests.support.mutants import mutated
from ustat_pg.distributions import WeightedChi2, weighted_chi2

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = json.loads((ROOT / "tests/data/weighted_chi2_reference.json").read_text())["sets"]

MUTANTS = {
    "no 1/2 in K": ("scale = at - 0.5 * log - y", "scale = at - log - y"),
    "wrong branch of the root": ("(old <= 0.0) & (new > 0.0)", "False"),
    "an equal weight counted once in the phase": ("phase[j] += count[k] *", "phase[j] +="),
    "the end nodes at full weight": ("density = 0.5 * b\n", "density = b\n"),
}

HEALED = {
    "the pole not taken off": ("if pole > 0.0:", "if pole > 1e9:"),
    "the pole taken off twice": ("tail -= 1.0 / np.expm1", "tail -= 2.0 / np.expm1"),
    "a step four times too long": ("sigma * sigma)\n", "sigma * sigma) * 4.0\n"),
}
"""Mistakes that the comparison with the double step notices: it halves until they vanish."""

NO_HALVING = ("for _ in range(5):", "for _ in range(1):")

OTHER_PATH = (
    ("0.02", "0.5"),
    ("deg2rad(42.0)", "deg2rad(38.0)"),
    ("_L = np.log(1e17)", "_L = np.log(1e19)"),
)
"""A rough saddle point, an angle of 38 degrees, more nodes."""


def changed(*changes: tuple[str, str]) -> ModuleType:
    """The bodies with these changes."""
    return mutated("ustat_pg/distributions/bodies.py", *changes)


def worst() -> float:
    """The largest relative error of smaller tails and of densities at a few points."""
    errors = []
    for entry in REFERENCE:
        law = WeightedChi2(entry["weights"])
        x = np.array([point["x"] for point in entry["points"]])
        wanted = np.array(
            [[float(point[key]) for key in ("cdf", "sf")] for point in entry["points"]]
        )
        found = np.stack([law.cdf(x), law.sf(x)], axis=1)
        row = np.arange(len(x)), wanted.argmin(axis=1)
        errors.append(np.abs(found[row] / wanted[row] - 1).max())
    distinct = [3.0, 1.0, 0.5]
    law = WeightedChi2(np.repeat(distinct, 2))
    for x in (0.1, 1.0, 30.0):
        density = float(oracle.paired(distinct, x)[1])
        errors.append(abs(law.pdf(x) / density - 1))
    return float(np.nan_to_num(errors, nan=np.inf).max())


def test_the_true_bodies_pass():
    assert worst() <= 1e-12


@pytest.mark.filterwarnings("ignore:WeightedChi2. the contour")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refuted(name, monkeypatch, record_property):
    record_property("mutant", name)
    module = changed(MUTANTS[name])
    monkeypatch.setattr(weighted_chi2, "_bodies", lambda: module)
    assert worst() > 1e-8


@pytest.mark.filterwarnings("ignore:WeightedChi2. the contour")
@pytest.mark.parametrize("name", HEALED)
def test_halving_heals_and_is_needed_for_it(name, monkeypatch, record_property):
    record_property("mutant", name)
    module = changed(HEALED[name], NO_HALVING)
    monkeypatch.setattr(weighted_chi2, "_bodies", lambda: module)
    assert worst() > 1e-8
    healed = changed(HEALED[name])
    monkeypatch.setattr(weighted_chi2, "_bodies", lambda: healed)
    assert worst() <= 1e-12


def test_the_value_does_not_depend_on_the_path(monkeypatch):
    module = changed(*OTHER_PATH)
    monkeypatch.setattr(weighted_chi2, "_bodies", lambda: module)
    assert worst() <= 1e-12


def test_a_step_three_times_shorter_changes_nothing():
    # Where one weight or a few stand far above very many, the sums settle most slowly.
    fine = changed(("sigma * sigma)\n", "sigma * sigma) * 0.3\n"))
    generator = np.random.default_rng(17)
    for index in range(100):
        many = generator.integers(2, 600)
        few = np.ones(generator.integers(1, 4))
        weights = np.append(few, generator.uniform(0.5, 1, many) * 10 ** -generator.uniform(0, 6))
        law = WeightedChi2(weights)
        low, high = law.mean() * generator.uniform(0.02, 1, 8), generator.exponential(3, 8)
        x = np.append(low, law.mean() + law.std() * high)
        found, wanted = law._direct(x), np.empty((3, 16))
        fine.log_tails(x, law._top, law._scaled_mean, *law._parameters, wanted)
        error = np.abs(found[:2] - wanted[:2]) / np.maximum(1, np.abs(wanted[0]) / 100)
        assert error.max() <= 5e-13, index
