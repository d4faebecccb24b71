"""The catalogue: what trainers of language models compute as advantages, by their own options.

The data is ``catalogue.toml`` beside this file; :mod:`~ustat_pg.catalogue.records` reads it.
"""

from .records import (
    Aggregation,
    Catalogue,
    Family,
    Framework,
    Meaning,
    Option,
    Row,
    catalogue,
    resolve,
    short_name,
)

__all__ = [
    "Aggregation",
    "Catalogue",
    "Family",
    "Framework",
    "Meaning",
    "Option",
    "Row",
    "catalogue",
    "resolve",
    "short_name",
]
