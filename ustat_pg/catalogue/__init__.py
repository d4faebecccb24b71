"""The catalogue: what trainers of language models compute as advantages, by their own options.

The data is ``catalogue.toml`` and ``frameworks/*.toml`` beside this file, which
:mod:`~ustat_pg.catalogue.records` reads; :mod:`~ustat_pg.catalogue.specs` reads what a user writes, out of
files by :mod:`~ustat_pg.catalogue.files`; :mod:`~ustat_pg.catalogue.meaning` puts the two together.
"""

from .framework import Framework, Row
from .meaning import Meaning
from .options import short_name
from .records import Family, catalogue
from .specs import named, resolve

__all__ = [
    "Family",
    "Framework",
    "Meaning",
    "Row",
    "catalogue",
    "named",
    "resolve",
    "short_name",
]
