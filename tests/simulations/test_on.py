"""``--on`` and ``--device``: kinds of problems, what is refused and skipped, and going without torch."""

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.commands import python
from tests.support.networks import WITHOUT_TORCH


def test_a_run_without_torch_confirms_one_step(tmp_path):
    words = ["verify", "suboptimality", "group_size", "--on", "tokens", "--size", "smoke"]
    words += ["--out", str(tmp_path)]
    done = python(
        f"{WITHOUT_TORCH}import sys; from simulations.__main__ import main; sys.exit(main({words!r}))"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 of 2 results confirmed" in done.stdout


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ("verify mse --engine autograd", True),
        ("verify mse --on tokens --engine autograd", True),
        *((words, False) for words in ("verify", "verify mse", "plan mse")),
        ("check mse 'skewed G=2 B=1: grpo MSE'", False),
        ("verify mse --on tokens", False),
    ],
)
def test_a_device_that_is_not_there_or_on_which_nothing_would_run_is_refused(
    words, runs, device, refused
):
    if runs and find_spec("torch") is None:
        pytest.skip("torch not installed")
    text = refused([*shlex.split(words), "--size", "smoke", "--device", device])
    none = f"--device {device}: only --engine autograd has one to choose"
    assert (repr(device) if runs else none) in text
    assert not list(Path().iterdir())
