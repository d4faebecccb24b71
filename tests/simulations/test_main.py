"""``python -m simulations`` as a user runs it: exit codes, one JSON object, kills and workers."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from figures.__main__ import main as figures
from simulations import ON_LANGUAGE_MODELS, STEMS
from simulations.__main__ import main
from simulations.evidence import Options, load_results, options
from simulations.evidence.options import SIZES, Size
from simulations.evidence.results import load_curves, load_run
from simulations.shared import peers
from tests.support.claims import GRADIENTS
from tests.support.commands import ROOT
from tests.support.kills import blocks, claims_in, interruptible, kill_in_mid_run
from tests.support.readme import printed_table, verdict_table

COMMAND = [sys.executable, "-m", "simulations", "verify", "--size", "smoke", "normalised"]


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


def test_workers_change_no_byte_and_progress_is_shown_on_a_terminals_stderr_alone(whole, tmp_path):
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--workers", "3", "--out", str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=writer, text=True,
    ) as process:  # fmt: skip
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # what Linux says at a terminal's end
            while piece := os.read(reader, 4096):
                shown += piece
        out = process.stdout.read()
    os.close(reader)
    assert all(word in shown.decode() for word in ("enumerate", "simulate", "left"))
    assert "enumerate" not in out.splitlines()[0]
    assert out.startswith("result")
    assert claims_in((tmp_path / "verdicts.json").read_text()) == whole[0]


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="reads Linux's account of processes"
)
def test_kills_change_no_byte_and_keep_finished_blocks(whole, tmp_path):
    """Of a run in processes, one of which dies; ``evidence/test_runner.py`` interrupts one in threads."""
    claims, count = whole
    words = [*COMMAND, "oracle", "--workers", "2", "--json", "--out", str(tmp_path)]
    process = interruptible(words)
    while not blocks(tmp_path) and process.poll() is None:
        time.sleep(0.002)
    (child, *_) = (
        int(word)
        for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if "spawn_main" in Path(f"/proc/{word}/cmdline").read_text()
    )
    os.kill(child, signal.SIGKILL)
    _, error = process.communicate(timeout=1200)
    assert process.returncode == 2
    assert "a worker process died" in error
    assert "finished blocks are kept, and the same command continues" in error
    kills = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
    done = kill_in_mid_run(words, tmp_path, count // 5, 2 * count, kills)
    alone = [entry for entry in json.loads(claims_in(done.stdout)) if entry["stem"] == "normalised"]
    assert json.dumps(alone) == claims


def test_every_claim_is_confirmed_and_every_rival_refuted(whole_run):
    data = json.loads((whole_run / "verdicts.json").read_text("utf-8"))
    assert [entry["stem"] for entry in data["claims"]] == list(STEMS)
    drawn = data["run"]["engine"] != "exact"
    kinds = ("exact", "simulation") if drawn else ("exact",)
    for entry in data["claims"]:
        assert entry["verdict"] == "CONFIRMED"
        for rival in entry["rivals"]:
            assert {rival["verdict"], *(rival[kind] for kind in kinds)} == {"REFUTED"}
            for origin, by in rival["origins"].items():
                # Real data may have no check for a rival, but never one that it survives.
                assert "SURVIVED" not in by.values()
                assert origin == "real" or {by[kind] for kind in kinds} == {"REFUTED"}
        for check in entry["checks"] if drawn else ():
            found = check["simulation"]
            # Every replication of an identity, and of what has no draws, is its value.
            assert found["smallest_discrepancy"] > 0 or found["standard_error"] == 0
            # What no draw reads has none.
            assert found["replications"] > 0 or found["standard_error"] == 0
            assert found["interval"][0] <= found["estimate"] <= found["interval"][1]
        origins = {check["origin"] for check in entry["checks"]}
        # No real data has the optimum that Corollaries 9 and 10 need.
        assert origins | {"real"} == {"made-up", "generated", "real"}
        assert "real" in origins or entry["stem"] in ("oracle_policy", "optimal_policy")
    assert not drawn or verdict_table(load_run(whole_run).claims) == printed_table()
    frame = load_results(whole_run)
    assert (frame["verdict"] == "CONFIRMED").all()
    assert (whole_run / "report.md").exists()
    assert (whole_run / "checks.csv").exists()


def test_a_claim_alone_says_what_it_says_in_the_suite(whole, whole_run):
    together = json.loads(claims_in((whole_run / "verdicts.json").read_text("utf-8")))
    assert json.dumps([entry for entry in together if entry["stem"] == "normalised"]) == whole[0]


def test_claims_of_one_configuration_share_a_folder_and_no_other_is_let_in(tmp_path, capsys):
    words = ["--size", "smoke", "--engine", "exact", "--out", str(tmp_path)]
    assert main(["verify", "minibatch", *words]) == 0
    assert figures([str(tmp_path), "--report"]) == 0
    page, picture = tmp_path / "report.html", tmp_path / "figures/mse.svg"
    alone = load_run(tmp_path).claims
    assert main(["verify", "minibatch", *words]) == 0
    assert page.exists()
    picture.write_text("of an earlier run")
    assert main(["verify", "mse", *words]) == 0
    whole = load_run(tmp_path)
    assert [claim.stem for claim in whole.claims] == ["mse", "minibatch"] == list(whole.draws)[::-1]
    assert whole.claims[1:] == alone
    assert "verify mse minibatch --size" in whole.run.command
    assert {"mse", "designs"} <= set(load_curves(tmp_path)["figure"])
    assert not page.exists()
    assert not picture.exists()
    # Rows of other code are left out, and named.
    document = json.loads((tmp_path / "verdicts.json").read_text())
    document["run"]["versions"]["code"] = "other"
    (tmp_path / "verdicts.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["verify", "mse", *words]) == 0
    assert (
        "come from other code or libraries, and are left out: minibatch\n"
        in capsys.readouterr().out
    )
    assert [claim.stem for claim in load_run(tmp_path).claims] == ["mse"]
    # A run that was killed before its curves goes on.
    (tmp_path / "curves.csv").unlink()
    assert main(["verify", "mse", *words]) == 0
    before = (tmp_path / "verdicts.json").read_bytes()
    capsys.readouterr()
    assert main(["verify", "mse", *words, "--seed", "3"]) == 2
    text = capsys.readouterr().err
    assert "holds the results of another run (smoke exact; this one is smoke exact seed 3)" in text
    assert (tmp_path / "verdicts.json").read_bytes() == before


NO_OPTIMUM = "limit_law needs a problem with an interior"


GRPO = "mse 'skewed G=2: grpo'"
IDENTITY = "ustatistic 'skewed G=2: grpo = U-statistic'"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("verify nothing", "claim 'nothing' is unknown"),
        ("verify mse --out /proc/nowhere", "results cannot be written here"),
        ("check mse 'skewd G=2: grpo'", "check of mse 'skewd G=2: grpo' is unknown; the nearest"),
        (f"check {GRPO} --refute 'no second order'", "'no second-order term'"),
        (f"check {GRPO} --replications many", "replications are 'many'"),
        (f"check {GRPO} --replications 4,4", "has 1 cell; give one number"),
        (f"check {IDENTITY} --refute V-stat", "'V-statistic'"),
        # Problems of tokens.
        ("verify limit_law --on tokens", NO_OPTIMUM),
        *(("verify limit_law --on tokens", stem) for stem in GRADIENTS),
        ("check limit_law x --on tokens", NO_OPTIMUM),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(words, message, refused):
    text = refused([*shlex.split(words), *(["--size", "smoke"] if "check" in words else [])])
    assert all(part in text for part in message.split(" ... "))
    assert message != NO_OPTIMUM or "oracle_policy" not in text


def test_exit_codes_of_refuted_and_inconclusive(tmp_path, capsys, monkeypatch):
    words = ["verify", "--size", "smoke", "--out"]
    with monkeypatch.context() as patch:
        true = peers.gradient_mse

        def wrong(moments, *arguments, **keywords):
            prediction = true(moments, *arguments, **keywords)
            return type(prediction)(**{**vars(prediction), "mse": prediction.mse * 1.2})

        patch.setattr(peers, "gradient_mse", wrong)
        assert main([*words, str(tmp_path / "a"), "minibatch", "--engine", "exact"]) == 1
    assert "REFUTED by exact" in capsys.readouterr().out
    monkeypatch.setitem(SIZES, "smoke", Size(2, 0.125))
    monkeypatch.setattr(options, "LARGEST_BLOCK", 1024)
    assert main([*words, str(tmp_path / "b"), "oracle"]) == 3
    assert "it would need" in capsys.readouterr().out


def test_a_formula_that_raises_refutes_its_claim_and_is_named(tmp_path, capsys, monkeypatch):
    from ustat_pg.predictions import lengths

    monkeypatch.setattr(lengths, "_fejer", lambda nodes: nodes / 0)
    words = ["verify", "--workers", "1", "--size", "smoke", "--engine", "exact", "--out"]
    assert main([*words, str(tmp_path / "all"), "length_weights", "oracle"]) == 1
    text = capsys.readouterr().out
    assert "length_weights: REFUTED: aggregated_mean raised ZeroDivisionError" in text
    assert "(asked in simulations/length_weights.py, line " in text
    refuted = {claim.stem: claim.verdict for claim in load_run(tmp_path / "all").claims}
    assert refuted == {"length_weights": "REFUTED", "oracle": "CONFIRMED"}


def test_what_would_be_seen_is_shown_where_asked(tmp_path, capsys):
    words = ["verify", "minibatch", "--size", "smoke", "--engine", "exact", "--out", str(tmp_path)]
    assert main(words) == 0
    short, before = capsys.readouterr().out, (tmp_path / "verdicts.json").read_bytes()
    assert main([*words, "--power"]) == 0
    shown = capsys.readouterr().out
    assert "10% off" in shown
    assert "10% off" not in short
    # The same run leaves the same bytes.
    assert (tmp_path / "verdicts.json").read_bytes() == before
    assert re.search(r"^Proposition 3 +minibatch +exact +100%", shown, re.MULTILINE)
    data = json.loads(before)
    assert [control["held"] for control in data["controls"]] == [True] * 3
    powers = data["claims"][0]["power"]
    assert [result["effect"] for result in powers] == [0.01, 0.02, 0.05, 0.1]
    assert all(result["best"] == 1.0 for result in powers)


def test_list_and_plan(tmp_path, capsys):
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{stem} " in listed for stem in (*STEMS, *ON_LANGUAGE_MODELS))
    words = ["plan", "mse", "--size", "smoke", "--out", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "alpha a check" in shown
    assert re.search(r"^all( +[\d.]+){4}$", shown, re.MULTILINE)
    assert "Replications are estimates" in shown
    assert main([*words, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert max(plan["needed"].values()) <= Options("smoke").drawn.budget
    assert list(plan["seconds"]) == ["design", "enumeration", "simulation"]
    assert min(plan["seconds"].values()) > 0
    assert (
        main(["plan", "oracle", "--on", "tokens", *words[2:], "--engine", "exact", "--json"]) == 0
    )
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["seconds"]["enumeration"] > 0 == plan["seconds"]["simulation"]
