"""``--on`` and ``--device``: kinds of problems, what is refused and skipped, and going without torch."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import simulations.__main__ as command
from simulations import KINDS, ON_NETWORKS, ON_RUNS, STEMS, Suite
from simulations.problems import tokens
from tests.support.claims import GRADIENTS
from tests.support.commands import python
from tests.support.kills import blocks, claims_in, kill_in_mid_run
from tests.support.networks import WITHOUT_TORCH

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")


def code_of(arguments: list[str], before: str = "") -> str:
    """The command as a program, after some statements."""
    return (
        f"{before}import sys; from simulations.__main__ import main; sys.exit(main({arguments!r}))"
    )


def run_of(arguments: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, after some statements."""
    return python(code_of(arguments, before))


# The suite.


def test_the_kinds_and_what_each_is_asked():
    assert KINDS == ("bandit", "tokens", "transformer", "language-model")
    assert set(GRADIENTS) | {"suboptimality", "group_size"} == set(ON_NETWORKS) <= set(STEMS)
    assert [stem for stem in STEMS if stem in ON_NETWORKS] == list(ON_NETWORKS)
    assert "group_size" not in ON_RUNS


@pytest.mark.parametrize("seed", range(2))
def test_one_prompt_is_the_hardest_or_the_easiest_that_is_open(seed):
    suite, closed = Suite("smoke", seed, on="tokens"), 0
    by = {entry.name: entry for entry in suite.single_prompts}
    for entry in suite.token_problems:
        values = entry.problem.moments().value
        sure = [max(row) for row in entry.problem.policy.probs]
        # Neither sure nor hopeless, and not always the same answer: what is rarer than 1 in 10 takes
        # more groups than there are.
        near = [
            float(value)
            for value, most in zip(values, sure, strict=True)
            if 0.1 < value < 0.9 and most < 0.9
        ]
        closed += len(values) - len(near)
        own = [by[name] for name in by if name.startswith(f"{entry.name}[")]
        found = sorted(float(part.problem.moments().value[0]) for part in own)
        assert found == pytest.approx(sorted({min(near), max(near)} if near else ()))
        assert {part.origin for part in own} <= {entry.origin}
        for part in own:
            number = int(part.name.removeprefix(f"{entry.name}[").removesuffix("]"))
            assert part.problem.moments().value[0] == pytest.approx(values[number])
    assert closed, "some are left out"


# Without torch.


TORCH = "pip install 'ustat_pg[torch]'"


@pytest.fixture
def no_torch(monkeypatch):
    """The process without torch, as far as it asks."""
    for module in (command, tokens):
        monkeypatch.setattr(module, "find_spec", lambda name: None)


def stems_of(*words):
    """The claims that a command verifies."""
    return command._known(command._parser().parse_args(["verify", *words]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((f"{asked} --on transformer", TORCH) for asked in ("verify", "verify mse", "plan mse")),
        ("verify mse --engine autograd --device cuda", TORCH),
    ],
)
def test_without_torch_what_needs_it_is_refused_with_the_command(no_torch, words, message, refused):
    assert message in refused([*words.split(), "--size", "smoke"])


@pytest.mark.parametrize("without", [True, pytest.param(False, marks=needs_torch)])
def test_tokens_are_asked_all_with_and_without_torch(without, request):
    if without:
        request.getfixturevalue("no_torch")
    assert stems_of("--on", "tokens") == stems_of("--on", "tokens", "--engine", "exact")
    assert stems_of("--on", "tokens") == list(ON_NETWORKS)
    skipped, step, sizes = Suite("smoke", on="tokens").skipped
    assert skipped.startswith("skipped on tokens: limit_law, oracle_policy, optimal_policy: ")
    # What is asked of networks in the place of what bandits are asked.
    assert step.startswith("suboptimality on tokens is one training step, enumerated")
    assert sizes == "group_size on tokens is the noise at fixed parameters"


def test_a_run_without_torch_confirms_one_step(tmp_path):
    words = ["verify", "suboptimality", "group_size", "--on", "tokens", "--size", "smoke"]
    done = run_of([*words, "--out", str(tmp_path)], WITHOUT_TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 results confirmed" in done.stdout


# The command.


@pytest.mark.parametrize("device", ["nonsense", "cuda", "cuda:99", ""])
@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("verify mse --engine autograd", True),
        ("verify mse --on tokens --engine autograd", True),
        *((words, False) for words in ("verify", "verify mse", "plan mse")),
        ("verify suboptimality --on tokens --engine reference", False),
        ("check mse 'skewed G=2 B=1: grpo MSE'", False),
        ("verify mse --on tokens", False),
    ],
)
def test_a_device_that_is_not_there_or_on_which_nothing_would_run_is_refused(
    words, runs, device, refused
):
    if runs and (device == "cuda" or find_spec("torch") is None):
        pytest.skip("it may be there, or torch may not")
    said = refused([*shlex.split(words), "--size", "smoke", "--device", device])
    none = f"--device {device}: only --engine autograd has one to choose"
    assert (repr(device) if runs else none) in said
    assert not list(Path().iterdir())


def test_folders_and_commands_name_the_kind():
    def of(*words):
        options = command._parser().parse_args(["verify", "--size", "smoke", *words])
        return options, command._folder(options)

    options, folder = of("--on", "tokens", "--device", "cuda:1")
    assert folder == Path("results/smoke-tokens-cuda1")
    said = command._command(options, list(ON_NETWORKS))
    # All that there is to verify goes without saying.
    assert "optimality" not in said
    assert said.endswith("--size smoke --engine cpu --seed 0 --on tokens --device cuda:1")
    # The command, run again, is the same run.
    again = command._parser().parse_args(said.split()[3:])
    assert (again.on, again.device, again.size) == ("tokens", "cuda:1", "smoke")
    _, folder = of("--seed", "7", "--engine", "reference")
    assert folder == Path("results/smoke-reference-seed-7")
    options, folder = of()
    assert folder == Path("results/smoke")
    said = command._command(options, STEMS)
    assert "--on" not in said
    assert "--device" not in said


# Interruptions.

SMALL = """
import ustat_pg.experiment.options as options
options.LARGEST_BLOCK, options.BUDGETS["smoke"] = 256, 30
import ustat_pg.experiment.planted as planted
planted.run_controls = lambda *words: ()
"""
"""Small blocks, without the figure's and the controls': some dozens in all."""


@needs_torch
def test_an_interrupted_run_on_tokens_resumes_to_the_same_bytes(tmp_path):
    words = ["verify", "suboptimality", "--on", "tokens", "--size", "smoke", "--workers", "2"]
    words.append("--json")
    whole = run_of([*words, "--out", str(tmp_path / "whole")], SMALL)
    assert whole.returncode in (0, 3), whole.stderr
    count = blocks(tmp_path / "whole")
    assert count > 20
    folder = tmp_path / "stopped"
    command = [sys.executable, "-c", code_of([*words, "--out", str(folder)], SMALL)]
    done = kill_in_mid_run(command, folder, count // 4, count, (signal.SIGKILL, signal.SIGINT))
    assert done.returncode == whole.returncode
    assert claims_in(done.stdout) == claims_in(whole.stdout)
