"""The library checks the theory of GRPO as a U-statistic, result by result, and turns it into advice.

The public names load on first use, so that ``import ustat_pg`` stays fast.
"""

from importlib import import_module as _load

import lazy_loader

from .files.named import READERS as _READERS

_READERS.update(
    moments=lambda known: _load(".problems", __name__).load_problem(known),
    episodes=lambda known: _load(".problems", __name__).load_episodes(known),
)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
