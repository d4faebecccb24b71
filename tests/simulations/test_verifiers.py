"""What Beyond 1 asks of a verifier that errs, and of advantages that are cut off."""

import numpy as np
import pytest

from simulations import Suite
from simulations.evidence import LogSlope
from simulations.parts.verifiers import RIVALS, SHORTER, TRUE_RATE, checks, cut_off
from ustat_pg.estimators import advantages

LEAST_SHARE = {TRUE_RATE: 0.15, SHORTER: 0.3}
"""The least share of the truth by which a rival is off; a tenth of others, and of logarithms."""


@pytest.mark.parametrize("seed", [0, 500, 517, 31337])
def test_each_rival_is_off_by_a_clear_share_on_every_generated_problem(seed):
    suite = Suite("quick", seed)
    told = {
        (check.problem.partition("[")[0], rival)
        for check in checks(suite)
        if check.origin == "generated"
        for rival in check.statement.rivals
        if check.statement.gap(rival)
        > LEAST_SHARE.get(rival, 0.1)
        * (1 if isinstance(check.functional, LogSlope) else abs(check.statement.prediction))
    }
    assert told == {(entry.name, rival) for entry in suite.rates() for rival in RIVALS}


@pytest.mark.parametrize("limit", [0.2, 1.0, 9.0])
def test_an_estimator_whose_advantages_are_cut_off_is_the_estimator_cut_off(limit):
    rewards = np.random.default_rng(0).integers(2, size=(200, 8)).astype(float)
    found = advantages(cut_off("std-ddof1", 8, limit).name, rewards)
    expected = np.clip(advantages("std-ddof1", rewards), -limit, limit)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
