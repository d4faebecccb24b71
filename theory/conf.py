"""The site of executable pages: Sphinx, MyST, and nothing that a page would have to fetch."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from ustat_pg import __version__  # noqa: E402

project = "ustat_pg"
author = "The ustat_pg authors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "catalogue_page",
    "course",
    "docstrings",
    "execution",
    "mutants_page",
    "notebooks",
]
exclude_patterns = ["_ext", "_static", "_templates"]
templates_path = ["_templates"]
root_doc = "index"
nitpicky = True
nitpick_ignore = [("py:data", "ustat_pg.problems.KINDS")]
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|torch|concurrent|collections|typing|pathlib|filelock)\..*")
]

# A page is executed at every build: a stored output could outlive the code that made it.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "image/svg+xml", 5)]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

# MathJax in one file of the site: it draws formulas as SVG, for which it needs no fonts.
MATHJAX = "tex-svg-full.js"
mathjax_path = MATHJAX
# No macros: a viewer of Markdown would not know them.
mathjax3_config = {"options": {"enableMenu": False}}

# Stubs of modules that are gone would be looked for.
rmtree(HERE / "api" / "generated", ignore_errors=True)
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_typehints_format = "short"
# The site is built without the extras too: what a module imports when it is loaded and is not here is not
# needed to read a docstring. What is here is imported: TRL asks the versions of what it finds.
_extras = ("accelerate", "hypothesis", "torch", "transformers", "trl")
autodoc_mock_imports = [name for name in _extras if find_spec(name) is None]
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = "GRPO as a U-statistic"
_package = find_spec("sphinx-mathjax-offline")
assert _package is not None, "the site needs the extra theory"
assert _package.origin is not None
html_static_path = [
    "_static",
    str(Path(_package.origin).parent / "static" / "mathjax" / MATHJAX),
]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # the summary is fetched, which a page opened from disk may not
html_use_index = True
html_theme_options = {"top_of_page_buttons": []}


def enlarge(app: Sphinx, document: nodes.document) -> None:
    """Link each figure to its file, for a phone: Sphinx links images that are told a width."""
    for figure in document.findall(nodes.figure):
        for image in figure.findall(nodes.image):
            image.setdefault("width", "100%")


def setup(app: Sphinx) -> None:
    """Before a page is written."""
    app.connect("doctree-read", enlarge)
