"""Commands of ``ustat-pg``: each parses its arguments, calls a function of the library and prints the
record.
"""
