"""What is printed of a pool's errors: every table where there is one, and warnings of what was left out."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from ustat_pg.llm.advice.commands import errors_of_pool
from ustat_pg.llm.pool.printing import noise_table
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.llm.rollouts.stored import VerifierWarning, warn_of


def pool(prompts=12, seed=1):
    rng = np.random.default_rng(seed)
    rewards = (rng.random((prompts, 8)) < rng.random((prompts, 1))).astype(float)
    scores = rng.normal(size=(prompts, 8, 4)) + (rewards - rewards.mean())[..., None]
    return ScoredPool.from_scores(rewards, scores)


POOL = pool()
ERRORS = errors_of_pool(POOL)


def test_every_table_is_printed_where_there_is_one():
    text, tables = str(ERRORS), ERRORS.tables
    assert "12 prompts" in text
    assert [name for name, frame in tables.items() if frame is not None]
    ratio = tables["noise_to_signal"]
    assert set(ratio["group_size"]) <= {2, 4, 8}
    table = noise_table(ratio)
    assert table in text
    assert table not in str(replace(ERRORS, tables=tables | {"noise_to_signal": None}))
    by_length = "With the tokens of a completion averaged, 1/|o|"
    assert by_length in text
    without = replace(ERRORS, tables=tables | {"noise_to_signal_by_length": None})
    assert by_length not in str(without)
    data = ERRORS.to_dict()
    assert (data["prompts"], data["rollouts"]) == (12, 8)
    assert "made_of" not in data["config"]
    for name, frame in tables.items():
        assert (data[name] is None) == (frame is None)
        assert frame is None or len(data[name]) == len(frame)


@pytest.mark.parametrize(("sizes", "expected"), [(None, {2, 4, 8}), ([3, 5], {3, 5})])
def test_group_sizes_are_powers_of_2_unless_given(sizes, expected):
    curves = errors_of_pool(POOL, sizes).tables["curves"]
    assert set(curves["group_size"]) == expected


@pytest.mark.parametrize(
    ("count", "said"), [(1, "e0$"), (3, "e0; e1; e2$"), (4, "e0; e1; e2; ...$")]
)
def test_prompts_whose_verifier_raised_are_counted_and_three_are_shown(count, said):
    failed = {f"q{k}": f"e{k}" for k in range(count)}
    text = f"raised an error at {count} of 9 prompts, which are left out, as kept: {said}"
    with pytest.warns(VerifierWarning, match=text):
        warn_of(failed, 9, ", as kept")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of({}, 9)
