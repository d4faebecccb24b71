"""``python -m simulations`` as a user runs it: exit codes, one JSON object, kills and workers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulations import ON_LANGUAGE_MODELS, ON_RUNS, STEMS, Suite
from simulations.__main__ import main
from tests.support.kills import ROOT, blocks, claims_in, kill_in_mid_run
from tests.support.readme import printed_table, verdict_table
from ustat_pg.experiment import Options, load_results, options
from ustat_pg.experiment.options import BUDGETS
from ustat_pg.problems import example_problem
from ustat_pg.results import load_run

COMMAND = [sys.executable, "-m", "simulations", "verify", "minibatch", "--size", "smoke"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        [*COMMAND, "--workers", "1", "--json", "--out", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no progress in a pipe"
    return claims_in(done.stdout), blocks(folder)


@pytest.mark.slow
def test_workers_change_no_byte_and_progress_is_shown_on_a_terminals_stderr_alone(whole, tmp_path):
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--workers", "3", "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=writer, text=True,
    ) as process:  # fmt: skip
        os.close(writer)
        shown = b""
        while True:
            try:
                piece = os.read(reader, 4096)
            except OSError:  # what Linux says at a terminal's end
                break
            if not piece:
                break
            shown += piece
        out = process.stdout.read()
    os.close(reader)
    text = shown.decode()
    assert "enumerate" in text
    assert "simulate" in text
    assert "left" in text
    assert "enumerate" not in out.splitlines()[0]
    assert out.startswith("result")
    assert claims_in((tmp_path / "verdicts.json").read_text()) == whole[0]


@pytest.mark.slow
def test_three_kills_change_no_byte_and_keep_finished_blocks(whole, tmp_path):
    claims, count = whole
    words = [*COMMAND, "--workers", "2", "--json", "--out", str(tmp_path)]
    kills = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
    kill_in_mid_run(words, tmp_path, count // 5, count, kills)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert claims_in(done.stdout) == claims
    assert not list((tmp_path / "blocks").glob("*.damaged"))


@pytest.fixture(scope="module")
def suite_run(tmp_path_factory):
    """Every claim at the smallest size: the exit code, what was printed, the folder."""
    folder = tmp_path_factory.mktemp("suite")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["verify", "--size", "smoke", "--json", "--out", str(folder)])
    return code, out.getvalue(), folder


@pytest.mark.slow
def test_every_claim_is_confirmed_and_every_rival_refuted(suite_run):
    code, text, folder = suite_run
    assert code == 0
    data = json.loads(text)
    assert [entry["stem"] for entry in data["claims"]] == list(STEMS)
    for entry in data["claims"]:
        assert entry["verdict"] == "CONFIRMED"
        for rival in entry["rivals"]:
            assert rival["verdict"] == rival["exact"] == rival["simulation"] == "REFUTED"
            for origin, by in rival["origins"].items():
                # Real data may have no check for a rival, but never one that it survives.
                assert "SURVIVED" not in by.values()
                assert origin == "real" or set(by.values()) == {"REFUTED"}
        for check in entry["checks"]:
            drawn = check["simulation"]
            assert drawn["smallest_discrepancy"] > 0
            assert drawn["replications"] > 0
            assert drawn["interval"][0] <= drawn["estimate"] <= drawn["interval"][1]
        origins = {check["origin"] for check in entry["checks"]}
        # No real data has the optimum that Corollaries 9 and 10 need.
        assert origins | {"real"} == {"made-up", "generated", "real"}
        assert "real" in origins or entry["stem"] in ("oracle_policy", "optimal_policy")
    assert verdict_table(load_run(folder).claims) == printed_table()
    frame = load_results(folder)
    assert (frame["verdict"] == "CONFIRMED").all()
    assert (folder / "report.md").exists()
    assert (folder / "checks.csv").exists()


@pytest.mark.slow
def test_a_claim_alone_says_what_it_says_in_the_suite(whole, suite_run):
    together = json.loads(suite_run[1])["claims"]
    assert json.dumps([entry for entry in together if entry["stem"] == "minibatch"]) == whole[0]


@pytest.mark.slow
def test_another_seed_confirms_too(tmp_path):
    stems = [stem for stem in STEMS if stem not in ON_RUNS]
    assert main(["verify", *stems, "--size", "smoke", "--seed", "7", "--out", str(tmp_path)]) == 0
    frame = load_results(tmp_path)
    assert set(frame["stem"]) == set(stems)
    assert (frame["verdict"] == "CONFIRMED").all()


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(example_problem()))
    return str(path)


def test_the_users_own_problem(example, tmp_path, capsys):
    code = main(["verify", "mse", "minibatch", "--size", "smoke", "--problem", example, "--json",
                 "--out", str(tmp_path / "out")])  # fmt: skip
    data = json.loads(capsys.readouterr().out)
    assert code in (0, 3)
    for entry in data["claims"]:
        assert entry["verdict"] != "REFUTED"
        assert {check["origin"] for check in entry["checks"]} == {"user"}
    rivals = {r["name"]: r["verdict"] for r in data["claims"][1]["rivals"]}
    # Its contexts are not equally likely, so that there is no design without replacement.
    assert rivals["(N-B)/N for (N-B)/(N-1)"] == "NOT TESTED"
    assert rivals["no prompt term"] == "REFUTED"


def test_rivals_that_coincide_on_the_users_problem_are_said_to(tmp_path, capsys):
    data = example_problem()
    data["reward_values"] = [[[1.0, 1.0]] * 3] * 2
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(data))
    code = main(["verify", "mse", "--size", "smoke", "--problem", str(path), "--json",
                 "--out", str(tmp_path / "out")])  # fmt: skip
    (entry,) = json.loads(capsys.readouterr().out)["claims"]
    assert code == 0
    verdicts = {rival["name"]: rival["verdict"] for rival in entry["rivals"]}
    # With equal rewards grpo has no error: only E z² still says something else.
    assert verdicts.pop("sigma2 replaced by E z^2") == "REFUTED"
    assert verdicts.pop("explicit bound: a quarter of it") == "NOT TESTED"
    assert set(verdicts.values()) == {"NOT DISTINGUISHABLE"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "nothing"], "claim 'nothing' is unknown"),
        (["verify", "--seed", "-1"], "seed is -1"),
        (["verify", "--workers", "0"], "workers is 0"),
        (["verify", "--problem", "/nowhere.json"], "/nowhere.json: No such file"),
        (["verify", "mse", "--out", "/proc/nowhere"], "results cannot be written here"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(words, message, refused):
    assert message in refused(words)


@pytest.mark.slow
def test_exit_codes_of_refuted_and_inconclusive(tmp_path, capsys, monkeypatch):
    import simulations.minibatch as module

    true = module.gradient_mse

    def wrong(moments, *arguments, **keywords):
        prediction = true(moments, *arguments, **keywords)
        return type(prediction)(**{**vars(prediction), "mse": prediction.mse * 1.2})

    monkeypatch.setattr(module, "gradient_mse", wrong)
    monkeypatch.setattr(options, "LARGEST_BLOCK", 8192)
    words = ["verify", "minibatch", "--size", "smoke", "--out"]
    assert main([*words, str(tmp_path / "a")]) == 1
    assert "REFUTED by exact" in capsys.readouterr().out
    monkeypatch.setattr(module, "gradient_mse", true)
    monkeypatch.setitem(BUDGETS, "smoke", 2)
    monkeypatch.setattr(options, "LARGEST_BLOCK", 64)
    assert main([*words, str(tmp_path / "b")]) == 3
    assert "it would need" in capsys.readouterr().out


def test_list_and_plan(tmp_path, capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert text.count("verified") == len(STEMS) + len(ON_LANGUAGE_MODELS)
    assert main(["plan", "mse", "--size", "smoke", "--out", str(tmp_path)]) == 0
    assert "alpha a check" in capsys.readouterr().out
    assert main(["plan", "mse", "--size", "smoke", "--out", str(tmp_path), "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert max(plan["needed"].values()) <= Options("smoke").budget


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads Linux's account of memory"
)
def test_a_quick_claim_stays_below_a_gigabyte(tmp_path):
    # Not getrusage: its maximum outlives exec, so that a large parent would count.
    code = (
        "import re, sys; from simulations.__main__ import main;"
        f"code = main(['verify', 'oracle', '--out', {str(tmp_path)!r}]);"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 1_000_000


def test_a_suite_knows_both_sides_of_assumption_2():
    suite = Suite("smoke")
    inside = suite.balanced.problem.moments()
    outside = suite.skewed.problem.moments()
    assert abs(inside.norm_advantage[0]) < 1e-15
    assert outside.optimal_baseline[0] == pytest.approx(0.128, abs=5e-4)
