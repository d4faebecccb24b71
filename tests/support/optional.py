"""Files of tests that need packages which are not installed."""

from collections.abc import Mapping
from importlib.util import find_spec


def without(needs: Mapping[str, str]) -> list[str]:
    """The files, by pytest's ``collect_ignore``, of tests whose packages are not all here.

    >>> without({"numpy no_such_package": "one room/two", "numpy": "three"})
    ['test_one.py', 'room/test_two.py']
    """
    return [
        "/".join([*name.split("/")[:-1], f"test_{name.split('/')[-1]}.py"])
        for packages, names in needs.items()
        if not all(map(find_spec, packages.split()))
        for name in names.split()
    ]
