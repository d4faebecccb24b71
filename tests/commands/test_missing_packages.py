"""Commands and imports where packages of an extra are not installed: one line that says what to install."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support.commands import ROOT
from tests.support.hidden import hidden
from tests.support.pages import NAMED, PAGES, PROGRAM, commands, files_of_a_reader, imports
from ustat_pg.cli import EXTRAS

EXTRA = re.compile(r"pip install 'ustat_pg\[(\w+)\]'")

MORE = {
    "ustat-pg advise --model embedded:short --budget 64": "llm",
    "ustat-pg llm mse --model embedded:short": "llm",
    "ustat-pg llm mse --model embedded:short --rollouts LOG": "llm",
    "ustat-pg llm sweep --config embedded --out sweep": "llm",
    "ustat-pg advise ustat:uneven --budget 64 --plot out.png": "figures",
    "ustat-pg explain std --group-size 4 --pass-rate .2 --plot out.png": "figures",
    "python -m ustat_pg.llm.trl.training --config run.yaml": "llm",
    "python -m simulations verify mse --size smoke --engine autograd": "torch",
    "python -m simulations verify mse --size smoke --on transformer": "torch",
    "python -m simulations verify --size smoke --on transformer": "torch",
    "python -m simulations plan mse --size smoke --on transformer": "torch",
    "python -m simulations verify --size smoke --on language-model": "llm",
    "python -m simulations verify mse --size smoke --dask tcp://localhost:1": "dask",
    "python -m simulations verify mse --size smoke --engine autograd --device cuda": "torch",
    "import ustat_pg.policies.models": "torch",
    "from ustat_pg.policies import TransformerPolicy": "torch",
    "from ustat_pg.noise import NoiseMeter": "torch",
    "import ustat_pg.noise.verl": "noise",
    "from ustat_pg.llm import NoiseMonitor": "llm",
    "from ustat_pg.llm import EstimatorTrainer": "llm",
    "from ustat_pg.llm import TwoStageTrainer": "llm",
    "from ustat_pg.llm.scores import Scores": "llm",
    **dict.fromkeys(
        (f"from ustat_pg.testing import {x}; {x}()" for x in ("problems", "rewards", "scores")),
        "testing",
    ),
    "import ustat_pg.algebra": "proof",
    **{
        f"from ustat_pg import estimators, testing; testing.{call}": "proof"
        for call in (
            "linear_formula(estimators.grpo)",
            "assert_unbiased(estimators.grpo, proof=True)",
        )
    },
    # A scored pool and rewards are numbers alone; so are alarms.
    "ustat-pg advise --scored POOL --budget 64": None,
    "ustat-pg llm mse --scored POOL": None,
    "ustat-pg llm sweep --help": None,
    "from ustat_pg.noise import Alarms, Alternative, NoiseEstimate": None,
    **{
        f"from ustat_pg import estimators, testing; testing.{check}(estimators.grpo)": None
        for check in ("assert_unbiased", "assert_finite", "assert_invariances")
    },
}
"""What need not stand on a page, and the extra that it needs."""

LATER = r"python -m (simulations (verify|plan|mutants)|figures|benchmarks)|python examples/train_drawn|make"
"""What takes minutes or needs a run's results, not an extra; benchmarks need all."""

QUIET = "try:\n    {}\nexcept ImportError as error:\n    assert error.name in {}"


@pytest.fixture(scope="module")
def named():
    """Commands and imports of ours that pages name."""
    ours = re.compile("(from|import) (ustat_pg|simulations|figures)")
    words = (line for page in PAGES for line in commands(page) if not NAMED.fullmatch(line))
    return [
        *(line for line in words if not re.match(LATER, line)),
        *(line for page in PAGES for line in imports(page) if ours.match(line)),
    ]


@pytest.fixture(scope="module")
def outcomes(named, tmp_path_factory):
    """What each comes to in a process that finds no package of an extra: exit code, output and error."""
    folder = tmp_path_factory.mktemp("without")
    quiet = [QUIET.format(line, tuple(EXTRAS)) for line in MORE if "import" in line]
    lines = list(dict.fromkeys([*named, *MORE, *quiet]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.pages"],
        cwd=files_of_a_reader(folder),
        env=os.environ | {"PYTHONPATH": hidden(folder, *EXTRAS, "hypothesis")},
        input=json.dumps(lines),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return dict(zip(lines, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("line", "extra"), MORE.items())
def test_one_line_says_what_to_install(outcomes, line, extra):
    code, out, err = outcomes[line]
    if extra is None:
        assert (code, err) == (0, "")
    else:
        assert (code, out) == (2 if PROGRAM.match(line) else 1, "")
        assert err.count("\n") == 1
        assert EXTRA.search(err)[1] == extra
    if quiet := outcomes.get(QUIET.format(line, tuple(EXTRAS))):
        assert quiet == [0, "", ""] or extra == "testing" or "InputError" in err


def test_what_pages_name_works_or_says_what_to_install(named, outcomes):
    assert len(named) > 200
    for line in named:
        code, _, err = outcomes[line]
        assert code == 0 or (err.count("\n") == 1 and EXTRA.search(err)), (line, err)


def test_the_extras_are_those_of_the_package():
    """What a command says to install is there to be installed, and brings the package."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    names = {"math_verify": "math-verify"}
    for package, extra in EXTRAS.items():
        (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", text, re.S | re.M)
        if package == "torch":
            assert '"ustat_pg[torch]"' in listed
        else:
            assert f'"{names.get(package, package)}' in listed
