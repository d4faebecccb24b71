"""The library checks the theory of GRPO as a U-statistic, result by result, and turns it into advice.

The public names load on first use, so that ``import ustat_pg`` stays fast.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
