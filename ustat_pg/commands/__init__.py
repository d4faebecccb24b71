"""Commands of ``ustat-pg``: each reads words, calls a function of the library and prints its record."""
