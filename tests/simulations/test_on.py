"""``--on`` and ``--device``: kinds of problems, what is refused and skipped, and going without torch."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import simulations.__main__ as command
from simulations import KINDS, ON_NETWORKS, ON_RUNS, STEMS, Suite, claim, curves
from simulations.__main__ import main
from simulations.problems import tokens
from tests.support.kills import ROOT, blocks, claims_in, kill_in_mid_run
from tests.support.networks import WITHOUT_TORCH
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.engines import GradientCell, NetworkTraining
from ustat_pg.experiment import Options, Store, run_claims
from ustat_pg.problems import example_problem, random_problem
from ustat_pg.validation import InputError

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
ON = ["tokens", pytest.param("transformer", marks=needs_torch)]

GRADIENTS = ("ustatistic", "mse", "minibatch", "oracle", "optimality")
"""The claims that need no run."""


@lru_cache
def suite_of(on: str, seed: int) -> Suite:
    """A small one; transformers take seconds to improve."""
    return Suite("smoke", seed, on=on)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def run_of(arguments: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, after some statements."""
    return python(
        f"{before}import sys; from simulations.__main__ import main; sys.exit(main({arguments!r}))"
    )


# The suite.


def test_the_kinds_and_what_each_is_asked():
    assert KINDS == ("bandit", "tokens", "transformer", "language-model")
    assert set(GRADIENTS) | {"suboptimality", "group_size"} == set(ON_NETWORKS) <= set(STEMS)
    assert [stem for stem in STEMS if stem in ON_NETWORKS] == list(ON_NETWORKS)
    assert "group_size" not in ON_RUNS


def test_a_suite_of_bandits_has_no_stand_ins():
    assert Suite().stand_ins == ()
    assert Suite().skipped == ()
    assert not Suite().trains


def test_what_a_suite_refuses():
    with pytest.raises(InputError, match="'atari' is unknown: choose one of bandit, tokens"):
        Suite(on="atari")
    with pytest.raises(InputError, match="takes the place of the tokens problems"):
        Suite(on="tokens", user=random_problem(0))


def test_the_users_own_problem_stands_alone():
    suite = Suite(user=random_problem(0))
    assert [(entry.name, entry.origin) for entry in suite.stand_ins] == [("problem", "user")]


@pytest.mark.parametrize(
    ("on", "seed"),
    [*(("tokens", seed) for seed in range(4)), pytest.param("transformer", 0, marks=needs_torch)],
)
def test_every_rival_is_told_apart_on_made_up_and_on_generated_problems(on, seed):
    suite = suite_of(on, seed)
    for stem in GRADIENTS:
        built = claim(stem, suite)
        assert {check.origin for check in built.checks} == {"made-up", "generated"}
        for rival, origin in itertools.product(built.rivals, ("made-up", "generated")):
            heard = [
                check
                for check in built.checks
                if check.origin == origin
                and rival in check.statement.rivals
                and check.statement.distinguishable(rival)
            ]
            assert heard, (stem, rival, origin)


@pytest.mark.parametrize("stem", GRADIENTS)
def test_the_rivals_are_those_of_the_bandits(stem):
    assert claim(stem, Suite("smoke", on="tokens")).rivals == claim(stem, Suite("smoke")).rivals


@pytest.mark.parametrize("stem", GRADIENTS)
def test_another_seed_is_other_generated_problems_and_the_same_fixed_ones(stem):
    def cells(seed: int, origin: str) -> list[str]:
        return [
            cell.name
            for check in claim(stem, Suite("smoke", seed, on="tokens")).checks
            if check.origin == origin
            for cell in check.functional.cells
        ]

    assert cells(0, "made-up") == cells(0, "made-up") == cells(1, "made-up")
    assert cells(0, "generated") == cells(0, "generated")
    assert not set(cells(0, "generated")) & set(cells(1, "generated"))


def test_figures_show_some_of_the_problems():
    suite = Suite("smoke", on="tokens")
    names = {entry.name for entry, _ in suite.shown}
    assert names == {"sums", "addition-trained"}
    for stem in ("mse", "ustatistic"):
        points = curves(stem, suite)
        assert points
        shown = {str(point.at["problem"]).partition("[")[0] for point in points}
        assert shown <= names


@pytest.mark.parametrize("seed", range(4))
def test_one_prompt_is_the_hardest_or_the_easiest_that_is_open(seed):
    suite, closed = suite_of("tokens", seed), 0
    by = {entry.name: entry for entry in suite.single_prompts}
    for entry in suite.stand_ins:
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


@pytest.fixture
def no_torch(monkeypatch):
    """The process without torch, as far as it asks."""
    for module in (command, tokens):
        monkeypatch.setattr(module, "find_spec", lambda name: None)


TORCH = "pip install 'ustat_pg[torch]'"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((f"{asked} --on transformer", TORCH) for asked in ("verify", "verify mse", "plan mse")),
        (
            "verify suboptimality --on tokens",
            "suboptimality on tokens trains networks, which needs torch",
        ),
        ("verify suboptimality --on tokens", TORCH),
        ("verify mse --engine autograd --device cuda", TORCH),
    ],
)
def test_without_torch_what_needs_it_is_refused_with_the_command(no_torch, words, message, refused):
    assert message in refused([*words.split(), "--size", "smoke"])


def test_without_torch_the_gradients_claims_are_left(no_torch):
    suite = Suite("smoke", on="tokens")
    assert not suite.trains
    assert command._known(command._parser().parse_args(["verify", "--on", "tokens"])) == [
        *GRADIENTS, "group_size"
    ]  # fmt: skip
    lines = suite.skipped
    assert len(lines) == 2
    assert lines[0].startswith("skipped on tokens: limit_law, oracle_policy, optimal_policy: ")
    assert "suboptimality" in lines[1]
    assert "group_size" in lines[1]
    assert "pip install 'ustat_pg[torch]'" in lines[1]
    for stem in (*GRADIENTS, "group_size"):
        built = claim(stem, suite)
        assert built.checks
        assert built.by_simulation == ()
        cells = [cell for check in built.checks for cell in check.functional.cells]
        assert all(isinstance(cell, GradientCell) for cell in cells)
        for point in curves(stem, suite):
            parts = () if point.functional is None else point.functional.cells
            assert all(isinstance(cell, GradientCell) for cell in parts)
        # A rival that is listed is still heard.
        for rival in built.rivals:
            assert any(rival in check.statement.rivals for check in built.checks)


@needs_torch
def test_with_torch_they_are_all_there():
    suite = Suite("smoke", on="tokens")
    assert suite.trains
    skipped, step, sizes = suite.skipped
    assert skipped.startswith("skipped on tokens: limit_law, oracle_policy, optimal_policy: ")
    # What is asked of networks in the place of what bandits are asked.
    assert step.startswith("suboptimality on tokens is one training step, enumerated")
    assert sizes.startswith("group_size on tokens is the noise at fixed parameters")
    built = claim("group_size", suite)
    assert any(
        isinstance(cell, NetworkTraining)
        for check in built.checks
        for cell in check.functional.cells
    )
    assert command._known(command._parser().parse_args(["verify", "--on", "tokens"])) == list(
        ON_NETWORKS
    )


@pytest.mark.parametrize(
    ("without", "engine"),
    [("", "exact"), (WITHOUT_TORCH, "cpu")],
    ids=["exact", "without torch"],
)
def test_a_run_without_training_says_what_it_skipped(without, engine, tmp_path):
    words = ["verify", "mse", "group_size"] if engine == "cpu" else ["verify"]
    words += ["--on", "tokens", "--size", "smoke", "--engine", engine]
    done = run_of([*words, "--out", str(tmp_path)], without)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    wanted = 2 if engine == "cpu" else 6
    assert f"{wanted} of {wanted} results confirmed" in done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("- skipped")]
    assert len(skipped) == 2
    assert "limit_law" in skipped[0]
    # Installing torch would not help what enumerates.
    assert ("pip install 'ustat_pg[torch]'" in skipped[1]) == (engine == "cpu")
    assert ("training runs, which nothing enumerates" in skipped[1]) == (engine == "exact")
    kept = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    stems = [found["stem"] for found in kept["claims"]]
    assert "suboptimality" not in stems
    assert len(stems) == wanted


def test_a_run_without_torch_refuses_transformers(tmp_path):
    words = ["verify", "--on", "tokens", "--size", "smoke", "--engine", "exact"]
    refused = run_of([*words[:2], "transformer", *words[3:], "--out", str(tmp_path)], WITHOUT_TORCH)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install 'ustat_pg[torch]'" in refused.stderr


def test_enumeration_alone_trains_no_network():
    words = ["verify", "--on", "tokens", "--engine", "exact"]
    options = command._parser().parse_args(words)
    assert command._known(options) == [*GRADIENTS, "group_size"]
    suite = command._suite(options)
    assert not suite.trains
    for stem in command._known(options):
        built = claim(stem, suite)
        assert built.by_simulation == ()
        cells = [cell for check in built.checks for cell in check.functional.cells]
        assert all(isinstance(cell, GradientCell) for cell in cells)
    # A bandit's runs stay on the list: there what is not enumerated is said check by check.
    bandit = command._parser().parse_args(["verify", "--engine", "exact"])
    assert command._known(bandit) == list(STEMS)


def test_importing_and_asking_loads_no_torch():
    done = python(
        "import sys, simulations, simulations.problems, simulations.problems.tokens\n"
        "import simulations.networks.learners, ustat_pg.experiment.probes\n"
        "from simulations import Suite, STEMS, ON_NETWORKS, claim\n"
        "for stem in ON_NETWORKS: claim(stem, Suite('smoke', on='tokens'))\n"
        "for stem in STEMS: __import__(f'simulations.{stem}')\n"
        "print([n for n in sys.modules if n.partition('.')[0] == 'torch'])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# The command.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "limit_law", "--on", "tokens"], "limit_law needs a problem with an interior"),
        (
            ["check", "limit_law", "x", "--on", "tokens"],
            "limit_law needs a problem with an interior",
        ),
        (["verify", "nothing", "--on", "tokens"], "claim 'nothing' is unknown"),
        (["check", "mse", "nothing", "--on", "tokens"], "check of mse 'nothing' is unknown"),
        (["verify", "mse", "--on", "tokens", "--seed", "-1"], "seed is -1"),
    ],
)
def test_what_is_refused_is_one_line_and_exit_2(words, message, refused):
    assert message in refused(words)


def test_the_refusal_lists_what_there_is(refused):
    said = refused(["verify", "limit_law", "--on", "tokens"])
    assert all(stem in said for stem in GRADIENTS)
    assert "oracle_policy" not in said


@pytest.mark.parametrize("on", ON)
def test_what_nothing_enumerates_is_refused_by_name(on, refused):
    said = refused(["verify", "suboptimality", "--on", on, "--engine", "exact"])
    assert "suboptimality" in said
    assert "an engine that simulates" in said


def test_a_kind_that_is_none_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["verify", "--on", "atari"])
    assert stopped.value.code == 2
    assert "invalid choice: 'atari'" in capsys.readouterr().err


def test_a_problem_of_ones_own_and_a_kind_exclude_each_other(tmp_path, refused):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(example_problem()))
    said = refused(["verify", "mse", "--on", "tokens", "--problem", str(path)])
    assert "takes the place of the tokens problems" in said


@needs_torch
@pytest.mark.parametrize("device", ["cuda:99", "tpu", "nonsense", "cpu:x", "cuda:-1", ""])
@pytest.mark.parametrize(
    "words",
    [
        "verify suboptimality --on tokens",
        "verify group_size --on tokens",
        "verify --on tokens",
        "plan suboptimality --on tokens",
        "verify mse --engine autograd",
    ],
)
def test_a_device_that_is_not_there_is_one_line_and_exit_2(words, device, refused):
    assert repr(device) in refused([*words.split(), "--size", "smoke", "--device", device])


@pytest.mark.parametrize("device", ["nonsense", "cuda"])
@pytest.mark.parametrize(
    "words",
    [
        ["verify"],
        ["verify", "mse"],
        ["verify", "suboptimality", "--engine", "reference"],
        ["plan", "mse"],
        ["check", "mse", "skewed G=2 B=1: grpo MSE"],
        ["verify", "mse", "--on", "tokens"],
    ],
    ids=" ".join,
)
def test_a_device_on_which_nothing_would_run_is_refused(words, device, refused):
    said = refused([*words, "--size", "smoke", "--device", device])
    assert f"--device {device}: only --engine autograd and the training runs of networks" in said
    assert not list(Path().iterdir())


def test_folders_and_commands_name_the_kind(monkeypatch):
    def words(*arguments):
        options = command._parser().parse_args(["verify", "--size", "smoke", *arguments])
        return options, Suite("smoke", on=options.on)

    options, suite = words("--on", "tokens", "--device", "cuda:1")
    assert command._folder(options, suite) == Path("results/smoke-tokens")
    said = command._command(options, list(ON_NETWORKS))
    # All that there is to verify goes without saying.
    assert ("optimality" in said) == (find_spec("torch") is None)
    assert said.endswith("--size smoke --engine cpu --seed 0 --on tokens --device cuda:1")
    # The command, run again, is the same run.
    again = command._parser().parse_args(said.split()[3:])
    assert (again.on, again.device, again.size) == ("tokens", "cuda:1", "smoke")
    options, suite = words()
    assert command._folder(options, suite) == Path("results/smoke")
    assert "--on" not in command._command(options, STEMS)
    assert "--device" not in command._command(options, STEMS)


def test_the_engine_that_differentiates_gets_all_parameters():
    for engine, dense in (("cpu", False), ("autograd", True)):
        words = ["verify", "--on", "tokens", "--engine", engine, "--device", "cuda:1"]
        suite = command._suite(command._parser().parse_args(words))
        assert (suite.on, suite.dense, suite.device) == ("tokens", dense, "cuda:1")


@pytest.mark.parametrize("dense", [False, True])
def test_the_suite_asks_for_its_kind_seed_and_parameters(dense, monkeypatch):
    asked = []

    def bandits(*arguments, **words):
        asked.append((*arguments, words))
        return iter(())

    monkeypatch.setattr(tokens, "bandits", bandits)
    assert Suite("quick", 7, on="transformer", dense=dense).stand_ins == ()
    assert asked == [("transformer", 2, 7, {"dense": dense})]


# Enumeration settles the gradients' claims, and a wrong prediction does not pass.


@pytest.mark.slow
@pytest.mark.parametrize("on", ON)
def test_every_rival_is_refuted_by_enumeration(on, tmp_path):
    built = [claim(stem, suite_of(on, 0)) for stem in GRADIENTS]
    for result in run_claims(built, Options("smoke", "exact"), Store(tmp_path)).claims:
        assert result.verdict == Verdict.CONFIRMED
        for rival in result.rivals:
            assert rival.exact == RivalVerdict.REFUTED
            assert {by["exact"] for by in rival.origins.values()} == {RivalVerdict.REFUTED}


# Interruptions.

SMALL = """
import ustat_pg.experiment.options as options
options.LARGEST_BLOCK, options.BUDGETS["smoke"] = 256, 30
import simulations.networks.suboptimality as module
module.curves = lambda suite: ()
"""
"""Small blocks, without the figure's: some dozens in all."""


@pytest.mark.slow
@needs_torch
def test_an_interrupted_run_on_tokens_resumes_to_the_same_bytes(tmp_path):
    words = ["verify", "suboptimality", "--on", "tokens", "--size", "smoke", "--workers", "2"]
    words.append("--json")
    whole = run_of([*words, "--out", str(tmp_path / "whole")], SMALL)
    assert whole.returncode in (0, 3), whole.stderr
    count = blocks(tmp_path / "whole")
    assert count > 20
    folder = tmp_path / "stopped"
    asked = [*words, "--out", str(folder)]
    code = f"{SMALL}import sys; from simulations.__main__ import main; sys.exit(main({asked!r}))"
    kills = signal.SIGKILL, signal.SIGINT
    kill_in_mid_run([sys.executable, "-c", code], folder, count // 4, count, kills)
    done = run_of(asked, SMALL)
    assert done.returncode == whole.returncode
    assert claims_in(done.stdout) == claims_in(whole.stdout)
    assert not list((folder / "blocks").glob("*.damaged"))
