"""Where the cells of a page run: the repository importable, and nothing written outside the build."""

from __future__ import annotations

import logging
import os
import sys
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

# All tables look alike: no frame, and no numbers of rows that mean nothing. A command that fails ends
# the build.
STARTUP = """\
import warnings

from IPython import get_ipython

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's, of a bar that no page shows


def _html(frame):
    plain = type(frame.index).__name__ == "RangeIndex"
    return frame.to_html(index=not plain, border=0)


_known = get_ipython().display_formatter.formatters["text/html"]
for _place in ("pandas", "pandas.core.frame"):
    _known.for_type_by_name(_place, "DataFrame", _html)


def _bash(line, cell):
    import subprocess

    done = subprocess.run(["bash", "-ec", cell], capture_output=True, text=True)
    print(done.stdout + done.stderr)  # at once: pieces would be set in lines of their own
    done.check_returncode()


get_ipython().register_magic_function(_bash, "cell", "bash")
"""


def prepare(app: Sphinx, config: Config) -> None:
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    root = Path(app.confdir).parent
    profile = Path(app.outdir).parent / ".kernel"
    (profile / "profile_default").mkdir(parents=True, exist_ok=True)
    (profile / "profile_default" / "ipython_kernel_config.py").write_text(KERNEL, "utf-8")
    startup = profile / "profile_default" / "startup"
    startup.mkdir(exist_ok=True)
    (startup / "site.py").write_text(STARTUP, "utf-8")
    path = [str(Path(app.confdir) / "_ext"), str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    # The command ustat-pg is where this Python is.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["IPYTHONDIR"] = str(profile)
    os.environ["JUPYTER_RUNTIME_DIR"] = str(profile / "runtime")
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    # Pages run side by side: threads of linear algebra would wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", prepare)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
