"""``python -m simulations check``: a line of a report, drawn again by itself, bit for bit."""

import json
import shlex

import pytest

from simulations import Suite, claim
from simulations.__main__ import main
from simulations.evidence import Options, Store, options, run_claims
from simulations.evidence.options import SIZES, Size
from simulations.evidence.provenance import document
from simulations.evidence.report import check_command
from simulations.evidence.results import load_run, plain
from simulations.evidence.runner import check_alone


def stored_run(folder, stems, suite, options):
    """The records of a run, as they are read back from their file."""
    run = run_claims([claim(stem, suite) for stem in stems], options, Store(folder))
    (folder / "verdicts.json").write_text(document(run, options).json())
    return load_run(folder)


def as_data(check):
    return json.loads(json.dumps(plain(check)))


@pytest.fixture(scope="module")
def smoke(whole_run):
    return load_run(whole_run)


def again(results, stem, check, capsys):
    """What the line's own command says, and its exit code."""
    words = shlex.split(" ".join(check_command(results, stem, check)))
    assert words[:4] == ["python", "-m", "simulations", "check"]
    code = main([*words[3:], "--json"])
    return code, json.loads(capsys.readouterr().out)


def without_plan(check):
    """A check as plain data, less what only the run's pilots know."""
    check = {key: value for key, value in check.items() if key != "planned_for"}
    for kind in ("exact", "simulation"):
        if check[kind] is not None:
            check[kind].pop("replications_needed")
    return check


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("ustatistic", "skewed G=2: grpo = U-statistic"),
        ("ustatistic", "features[1] G=3: oracle = g + first"),
        ("mse", "skewed G=2: no estimate longer than its bound"),
        ("ustatistic", "balanced G=2: parts uncorrelated"),
        ("mse", "skewed G=2: grpo"),
        ("mse", "several[1] G=3: grpo covariance along direction 0"),
        ("mse", "coin G=2: explicit bound"),
        ("oracle", "digits[472] G=2 B=1: ratio - 1"),
        ("oracle", "balanced G=2..8 B=1: order of ratio - 1"),
    ],
)
def test_a_line_alone_is_the_runs_to_the_last_bit(smoke, stem, name, capsys):
    checks = {(c.stem, check.name): check for c in smoke.claims for check in c.checks}
    code, alone = again(smoke, stem, checks[stem, name], capsys)
    assert code == 0
    assert without_plan(alone) == without_plan(as_data(checks[stem, name]))


def test_cells_of_unequal_replications_and_the_reference_engine(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(options, "LARGEST_BLOCK", 256)
    monkeypatch.setitem(SIZES, "smoke", Size(1024, 0.125))
    run = stored_run(tmp_path, ["oracle"], Suite("smoke"), Options("smoke", "reference"))
    slopes = [check for check in run.claims[0].checks if "order of" in check.name]
    # All cells of a slope are drawn as often as it needs, but a ratio may need one oftener.
    run.draws["oracle"][slopes[0].name] = (512, 768, 256)
    words = check_command(run, "oracle", slopes[0])
    assert words[words.index("--replications") + 1] == "512,768,256"
    _, alone = again(run, "oracle", slopes[0], capsys)
    assert alone["simulation"]["replications"] == 512 + 768 + 256
    stored = slopes[1]
    code, alone = again(run, "oracle", stored, capsys)
    assert without_plan(alone) == without_plan(as_data(stored))
    assert code == (3 if alone["simulation"]["verdict"] == "INCONCLUSIVE" else 0)


def test_a_rival_asked_for_decides_the_verdict():
    design = claim("oracle", Suite("smoke"))
    name, rival = "skewed G=2 B=1: ratio - 1", "ratio 1 + 1/G"
    result = check_alone(design, name, Options("smoke"), [16_384])
    assert result.simulation.rivals[rival] == "SURVIVED"
    assert result.simulation.verdict == "CONFIRMED"
    asked = check_alone(design, name, Options("smoke"), [16_384], [rival])
    assert asked.simulation.verdict == "INCONCLUSIVE"
