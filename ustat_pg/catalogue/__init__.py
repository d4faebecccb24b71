"""The catalogue: what trainers of language models compute as advantages, by their own options.

The data is ``catalogue.toml`` and ``frameworks/*.toml`` beside this file;
:mod:`~ustat_pg.catalogue.records` reads it, :mod:`~ustat_pg.catalogue.specs` reads what a user writes, and
:mod:`~ustat_pg.catalogue.meaning` puts the two together.
"""

from .meaning import Meaning
from .records import Family, Framework, Row, catalogue, short_name
from .specs import resolve

__all__ = [
    "Family",
    "Framework",
    "Meaning",
    "Row",
    "catalogue",
    "resolve",
    "short_name",
]
