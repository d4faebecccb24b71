"""The catalogue of the advantages that trainers of language models compute, by their own options.

:mod:`~ustat_pg.catalogue.records` reads the data, ``catalogue.toml`` and ``frameworks/*.toml`` in this
folder. :mod:`~ustat_pg.catalogue.specs` reads the options of a user, and :mod:`~ustat_pg.catalogue.files`
reads files of options; :mod:`~ustat_pg.catalogue.shell` follows scripts, and
:mod:`~ustat_pg.catalogue.trainings` tells which of their commands train.
:mod:`~ustat_pg.catalogue.meaning` combines them.
"""

from .framework import Framework, Row
from .meaning import Meaning
from .options import short_name
from .records import Family, catalogue
from .specs import named, resolve, resolve_all

__all__ = [
    "Family",
    "Framework",
    "Meaning",
    "Row",
    "catalogue",
    "named",
    "resolve",
    "resolve_all",
    "short_name",
]
