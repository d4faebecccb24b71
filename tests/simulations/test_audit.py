"""The audit of a run: what it derives, what it sees, and what it refuses."""

import ast
import json
import sys
from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path

import pytest

from simulations import audit
from simulations.__main__ import main
from simulations.evidence import Claim
from simulations.evidence.definitions import DEFINITIONS_FILE, definitions
from simulations.paper import ON_RUNS
from simulations.problems import Suite
from simulations.shared import peers
from ustat_pg import estimators

VERIFY = ("verify", "--engine", "exact", "--size", "smoke", "--workers", "1", "--out")


def audited(folder, capsys):
    """The exit code of an audit, and the lines that it prints."""
    capsys.readouterr()
    code = audit.main(folder)
    return code, capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two claims, the second one after the first in the same folder."""
    folder = tmp_path_factory.mktemp("run")
    for stem in ("oracle", "count_advantages"):
        assert main([*VERIFY, str(folder), stem]) in (0, 3)
    return folder


def changed(run, folder, name, change):
    """A copy of a run's two files, of which one is changed as data."""
    for file in audit.FILES:
        data = json.loads((run / file).read_text())
        if file == name:
            change(data)
        (folder / file).write_text(json.dumps(data))
    return folder


def test_it_imports_the_standard_library_alone_and_is_read_in_minutes():
    text = Path(audit.__file__).read_text(encoding="utf-8")
    imports = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert names <= sys.stdlib_module_names
    assert len(text.splitlines()) <= 300
    assert audit.RUNS == ON_RUNS


@pytest.mark.parametrize(
    "label", ["grpo", "std", "others-std", "pass-at-k:2", "gain-at-k:2", "minimum-variance"]
)
@pytest.mark.parametrize("size", [2, 3])
def test_groups_of_rewards_stand_for_groups_of_outputs(label, size):
    """E ĝ and E‖ĝ‖² over every ordered group of outputs, with no independence used."""
    stored = {
        "chances": [1.0],
        "outcomes": [[[0.125, 1.0, 0], [0.125, 0.0, 0], [0.25, 0.0, 1], [0.5, 1.0, 2]]],
        "scores": [[[3.0, 1.0], [-1.0, 2.0], [-1.0, -1.5]]],
        "directions": {"0": [0.6, 0.8]},
    }
    problem = audit.Problem(stored)
    weigh = audit.advantage(label, problem, 0)
    mean, square, along = [0, 0], 0, 0
    for group in product(problem.prompts[0], repeat=size):
        chance, z = prod(p for p, _, _ in group), [one for _, one, _ in group]
        weights = [weigh(z[i], z[:i] + z[i + 1 :]) for i in range(size)]
        ghat = [
            sum(a * s[k] for a, (*_, s) in zip(weights, group, strict=True)) / size for k in (0, 1)
        ]
        mean = [m + chance * c for m, c in zip(mean, ghat, strict=True)]
        square += chance * sum(c * c for c in ghat)
        along += chance * audit.dot(ghat, problem.units[0]) ** 2
    assert audit.law(problem, size, (label,), 0, None) == (mean, square)
    assert audit.law(problem, size, (label,), 0, 0)[1] == along


@pytest.mark.parametrize(
    ("design", "batch"), [("iid", 2), ("without-replacement", 2), ("fixed", 3)]
)
def test_minibatches_are_those_of_every_choice_of_prompts(design, batch):
    scores = [[[2.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -0.5]], [[1.0, 1.0], [-0.5, -0.5]]]
    law = [[1 / 3, 1.0, 0], [2 / 3, 0.0, 1]]
    third = Fraction(1, 3)
    stored = {"chances": [third] * 3, "outcomes": [law] * 3, "scores": scores, "directions": {}}
    problem = audit.Problem(stored)
    moments = [audit.law(problem, 2, ("grpo",), x, None) for x in range(3)]
    choices = [
        x for x in product(range(3), repeat=batch) if design == "iid" or len(set(x)) == batch
    ]
    square = sum(
        moments[x][1] if i == j else audit.dot(moments[x][0], moments[y][0])
        for chosen in choices
        for i, x in enumerate(chosen)
        for j, y in enumerate(chosen)
    )
    found = audit.minibatch(problem, 2, batch, design, ("grpo",), None)[1]
    assert found == Fraction(square) / len(choices) / batch**2


def test_a_run_is_derived_anew(run, capsys):
    code, lines = audited(run, capsys)
    assert code == 0
    assert lines[-1] == "All of them agree."
    counts = {line.split()[0]: line.split()[1::2] for line in lines[:2]}
    assert set(counts) == {"oracle", "count_advantages"}
    for derived, asked in counts.values():
        assert int(derived) >= 0.6 * int(asked)
    assert (run / DEFINITIONS_FILE).stat().st_size < 2e6


def test_it_derives_most_checks_of_a_whole_run(whole_run, capsys):
    code, lines = audited(whole_run, capsys)
    assert code == 0, lines
    derived, asked = (int(word) for word in lines[-5].split() if word.isdigit())
    assert derived >= 0.6 * asked


def test_an_error_in_estimators_engines_and_predictions_at_once_is_seen(
    tmp_path, monkeypatch, capsys
):
    """Leave-one-out means that take the own output in, and closed forms that say so too."""

    def planted(formula):
        def wrong(moments, name, *sizes, **known):
            return formula(moments, {"grpo": "group-mean"}.get(name, name), *sizes, **known)

        return wrong

    monkeypatch.setitem(estimators.FUNCTIONS, "grpo", estimators.group_mean)
    for name in ("gradient_mse", "gradient_covariance"):
        monkeypatch.setattr(peers, name, planted(getattr(peers, name)))
    main([*VERIFY, str(tmp_path), "minibatch"])
    claim = json.loads((tmp_path / "verdicts.json").read_text())["claims"][0]
    verdicts = {check["name"]: check["exact"] for check in claim["checks"]}
    code, lines = audited(tmp_path, capsys)
    assert code == 1
    differs = {line.partition(": derived")[0] for line in lines if line.startswith("DIFFERS")}
    name = "several G=2 B=3 iid: grpo covariance along direction 0"
    assert verdicts[name]["verdict"] == "CONFIRMED"
    assert f"DIFFERS: minibatch: {name}" in differs
    assert all("grpo" in line for line in differs)


@pytest.mark.parametrize("share", [1e-3, 1e-8])
def test_a_value_that_is_off_in_predictions_and_enumerations_alike_is_seen(
    run, tmp_path, capsys, share
):
    def off(data):
        (check,) = (c for c in data["claims"][0]["checks"] if c["name"].startswith("skewed G=2"))
        check["prediction"] *= 1 + share
        check["exact"]["estimate"] *= 1 + share
        check["region"] = [end * (1 + share) for end in check["region"]]

    code, lines = audited(changed(run, tmp_path, "verdicts.json", off), capsys)
    assert code == 1
    assert lines[-1].startswith("DIFFERS: oracle: skewed G=2")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("verdicts.json", lambda data: data["run"]["versions"].update(code="0")),
        ("definitions.json", lambda data: data.pop("versions")),
        ("definitions.json", lambda data: data["checks"].pop("oracle")),
        ("definitions.json", lambda data: data["problems"].clear()),
        ("definitions.json", lambda data: next(iter(data["problems"].values()))["scores"][0][0].pop()),
    ],
)  # fmt: skip
def test_a_folder_without_what_it_needs_is_refused_in_one_line(run, tmp_path, capsys, name, change):
    assert audit.main(changed(run, tmp_path, name, change)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, capsys):
    assert audit.main(tmp_path) == 2
    (tmp_path / "verdicts.json").write_text("{")
    assert audit.main(tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_long_scores_are_stored_in_a_basis_of_their_span():
    """Pixels of digits: 650 parameters, and no more numbers a score than outputs and a gradient."""
    (entry,) = (e for e in Suite(size="smoke").single_prompts if e.problem.d == 650)
    cell = peers.Setting(entry, 2)
    (peer,) = peers.peers(entry.problem, ("grpo",))[:1]
    claim = Claim("mse", (), (peers.error(cell, peer),))
    stored = json.loads(definitions([claim], {}))
    (problem,) = stored["problems"].values()
    assert len(problem["scores"][0][0]) <= entry.problem.arms + 1
    value, _ = audit.derive(
        {name: audit.Problem(one) for name, one in stored["problems"].items()},
        stored["checks"]["mse"][claim.checks[0].name],
    )
    assert float(value) == pytest.approx(claim.checks[0].statement.prediction, rel=1e-12)
