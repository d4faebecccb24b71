"""Where the cells of a page run: the repository importable, and nothing written outside the build."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

# What every cell's kernel starts with: pictures as SVG, whose text is drawn as paths so that a
# page looks the same whichever fonts the reader has.
KERNEL = """\
c.InlineBackend.figure_formats = {"svg"}
c.InlineBackend.rc = {"svg.fonttype": "path", "svg.hashsalt": "ustat_pg", "figure.dpi": 100}
c.InteractiveShell.colors = "nocolor"
c.IPKernelApp.log_level = 40
"""


def prepare(app: Sphinx, config: Config) -> None:
    """Set the environment that the kernels inherit."""
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    root = Path(app.confdir).parent
    profile = Path(app.outdir).parent / ".kernel"
    (profile / "profile_default").mkdir(parents=True, exist_ok=True)
    (profile / "profile_default" / "ipython_kernel_config.py").write_text(KERNEL, "utf-8")
    path = [str(Path(app.confdir) / "_ext"), str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    os.environ["IPYTHONDIR"] = str(profile)
    os.environ["JUPYTER_RUNTIME_DIR"] = str(profile / "runtime")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ["TQDM_DISABLE"] = "1"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook."""
    app.connect("config-inited", prepare)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
