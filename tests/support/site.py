"""How tests build the site."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(source, target, timeout=1200):
    """Build as ``make theory`` does: warnings are errors, every page is executed."""
    command = [sys.executable, "-m", "sphinx", "-T", "-q", "-W", "--keep-going", "-E", "-b", "html"]
    return subprocess.run(
        [*command, str(source), str(target)],
        cwd=target.parent,  # not the repository: cells must not depend on where the build runs
        capture_output=True,
        text=True,
        timeout=timeout,
    )
