"""Files of tests that need packages which are not installed."""

from collections.abc import Mapping
from importlib.util import find_spec


def without(needs: Mapping[str, str]) -> list[str]:
    """The files, by pytest's ``collect_ignore``, of tests whose packages are not all here.

    >>> without({"numpy no_such_package": "one two", "numpy": "three"})
    ['test_one.py', 'test_two.py']
    """
    return [
        f"test_{name}.py"
        for packages, names in needs.items()
        if not all(map(find_spec, packages.split()))
        for name in names.split()
    ]
