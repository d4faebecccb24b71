"""What looks on at a training and never stops it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

FEWEST = 10
"""Steps before anything is reported."""


class Onlooker:
    """A part of a training loop that an error of its own switches off, with one warning."""

    _off = False

    def _safely(self, act: Callable[..., Any], *given: Any) -> Any:
        """What ``act`` returns; None once it is off."""
        if self._off:
            return None
        try:
            return act(*given)
        except Exception as error:
            self._off = True
            self._stop()
            warnings.warn(f"noise is off, the training goes on: {error}", stacklevel=2)
            return None

    def _stop(self) -> None:
        """Take the hooks away."""
        raise NotImplementedError
