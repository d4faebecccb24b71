"""What the tests of the meter need."""

from tests.support.optional import without

collect_ignore = without({"torch": "alarms completions lags layers meter meter_guard verl"})
