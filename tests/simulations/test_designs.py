"""The designs: what the suite promises for every seed, before anything is drawn."""

import json
import re
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from simulations import ON_NETWORKS, STEMS, Suite, claim, turns
from simulations.engines import SurvivorCell, Training
from simulations.engines.turns import TurnCell
from simulations.evidence import Options
from simulations.evidence.chi_squares import ChiSquares
from simulations.problems import Entry
from simulations.problems.turns import episodes
from simulations.processes import processes_of
from simulations.shared.peers import telling
from simulations.ustatistic import SHARED
from tests.support.claims import GRADIENTS
from ustat_pg.problems import SoftmaxBandit, WeightedBandit

EPSILON = np.finfo(float).eps
ROOT = Path(__file__).resolve().parents[2]
suite_of = cache(Suite)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")


@cache
def claim_of(stem, size="smoke", seed=0, on="bandit"):
    """A claim, made once."""
    return claim(stem, suite_of(size, seed, on=on))


def test_rivals_of_the_identity_are_told_apart_where_there_are_too_many_groups_to_list():
    uniform, sure = np.zeros((1, 300)), np.ones((1, 300, 1))
    rewards = np.linspace(0, 1, 300).reshape(1, 300, 1)
    many = SoftmaxBandit.tabular([1.0], uniform, rewards, sure)

    suite = Suite("smoke")
    vars(suite)["single_prompts"] = [Entry("many", "made-up", many)]

    built = claim("ustatistic", suite)

    heard = [c for c in built.checks if re.match("many .*grpo = U-statistic$", c.name)]
    assert heard
    small = [check for check in heard if check.statement.rivals]
    assert small
    for check in small:
        assert set(check.statement.rivals) == set(built.rivals) - {SHARED}
        assert all(map(check.statement.distinguishable, check.statement.rivals))


@pytest.fixture(scope="module", params=STEMS)
def stem(request):
    """A result; what is asked of one stands together, for its designs are made once."""
    return request.param


def test_every_rival_has_its_reason_on_the_page(stem, whole_run):
    """A page's list of rivals is the claim's: none is missing, and none that is gone."""
    (entry,) = (
        entry
        for entry in json.loads((whole_run / "verdicts.json").read_text("utf-8"))["claims"]
        if entry["stem"] == stem
    )
    page = (ROOT / "theory" / f"{stem}.md").read_text("utf-8")
    _, _, asked = page.partition("## What `verify` checks\n")
    listed = re.findall(r"^- `(.+?)`: \S", asked.partition("\n## ")[0], re.MULTILINE)
    assert sorted(listed) == sorted(rival["name"] for rival in entry["rivals"])


def cells(built, origin):
    """Names of the cells on problems of an origin."""
    return {
        cell.name
        for check in built.checks
        if check.origin == origin
        for cell in check.functional.cells
        # At the optimum bends show in no gradient: the same cell whatever they are. Normal
        # deviates have no problem at all.
        if not isinstance(cell, ChiSquares)
        and (built.stem != "optimal_policy" or isinstance(cell, Training))
    }


def differ_where_generated(first, other):
    assert cells(first, "made-up") == cells(other, "made-up")
    assert not cells(first, "generated") & cells(other, "generated")


def test_another_seed_is_other_generated_problems_and_the_same_fixed_ones(stem):
    differ_where_generated(claim_of(stem), claim_of(stem, seed=1))


# Claims take their problems of tokens from one list.
@pytest.mark.parametrize("asked", ["mse", "practical_mse"])
def test_another_seed_is_other_problems_of_tokens(asked):
    first = claim_of(asked, on="tokens")
    differ_where_generated(first, claim_of(asked, seed=1, on="tokens"))
    # Made anew, and not taken from what was made before.
    again = claim(asked, Suite("smoke", 0, on="tokens"))
    assert [check.name for check in again.checks] == [check.name for check in first.checks]
    assert cells(again, "generated") == cells(first, "generated")


def test_anchors_of_every_problem_that_a_claim_runs_on(stem):
    problems = {
        cell.problem.digest: cell.problem
        for check in claim_of(stem, seed=1).checks
        for cell in check.functional.cells
        # Weighted scores are no scores of their policy; outputs split by their fate, and a turn's part of
        # episodes, have no parameters.
        if not isinstance(getattr(cell, "problem", None), WeightedBandit | None)
        and not isinstance(cell, SurvivorCell | TurnCell)
    }
    assert problems or stem in ("survivors", "turns")
    rng = np.random.default_rng(0)
    for problem in problems.values():
        probs = problem.policy.probs
        for x in rng.choice(problem.contexts, min(problem.contexts, 5), replace=False):
            scores = problem.policy.scores(x)
            assert np.abs(probs[x] @ scores).max() < 1e-13 * (1 + np.abs(scores).max())
        gradient, theta, step = problem.gradient(), problem.policy.theta, 1e-5
        for unit in rng.normal(size=(3, problem.d)) / np.sqrt(problem.d):
            slope = (
                problem.objective(theta + step * unit) - problem.objective(theta - step * unit)
            ) / (2 * step)
            assert gradient @ unit == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    "on",
    [
        "tokens",
        pytest.param("transformer", marks=needs_torch),
    ],
)
def test_enumeration_confirms_and_refutes_every_rival_on_networks(on, run_of):
    data = json.loads((run_of(on) / "verdicts.json").read_text("utf-8"))
    results = {entry["stem"]: entry for entry in data["claims"]}
    assert results.keys() == set(ON_NETWORKS)
    for stem in GRADIENTS:
        result, design = results[stem], claim_of(stem, on=on)
        assert set(design.rivals) <= set(claim_of(stem).rivals)
        assert {check["origin"] for check in result["checks"]} == {"made-up", "generated"}
        for check in result["checks"]:
            assert check["exact"] is None or check["exact"]["verdict"] == "CONFIRMED", check["name"]
        assert result["verdict"] == "CONFIRMED"
        assert {rival["name"] for rival in result["rivals"]} == set(design.rivals)
        for rival in result["rivals"]:
            assert rival["exact"] == "REFUTED"
            by = {name: of["exact"] for name, of in rival["origins"].items() if name != "real"}
            assert by == {"made-up": "REFUTED", "generated": "REFUTED"}


@pytest.mark.parametrize("bits", [-1, 0, 1])
def test_what_is_asked_of_turns_is_for_their_list_to_say(bits, monkeypatch):
    """Chances a last bit off sum to another number than 1, and who reaches a turn is the same."""
    entries = [
        replace(
            entry, problem=evolve(entry.problem, probs=entry.problem.probs * (1 + bits * EPSILON))
        )
        for entry in episodes(suite_of("smoke"))
        if entry.origin == "made-up"
    ]
    monkeypatch.setattr(turns, "episodes", lambda suite: entries)

    asked = {check.name for check in turns.checks(suite_of("smoke"))}

    for entry in entries:
        for turn, always in enumerate(entry.problem.reached.all(axis=0), start=1):
            of_turn = {
                name for name in asked if name.startswith(f"{entry.name} turn {turn}: mean of")
            }
            # A turn without a gradient is not asked of at all.
            assert of_turn or entry.name == "weather"
            dropped = any("lone turns dropped" in name for name in of_turn)
            assert dropped == (bool(of_turn) and not always)


def test_what_rounding_leaves_of_nothing_has_no_say_in_a_direction():
    problem = Suite().several.problem
    gradient = problem.gradient()
    nothing = 1e-17 * np.random.default_rng(5).normal(size=(4, problem.d))

    alone = telling(problem, [gradient])

    assert all(telling(problem, [gradient, some]).number == alone.number for some in nothing)


def test_claims_of_a_device_share_few_processes():
    def processes(engine, workers, stems=STEMS):
        return processes_of(stems, Options("smoke", engine, workers=workers))

    assert processes("cpu", 16) == 16
    assert processes("cuda", 16) == 4
    assert processes("cuda", 3) == processes("cpu", 16, STEMS[:1]) == 1
