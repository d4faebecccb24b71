"""Commands of ``ustat-pg`` that have a module of their own: predict and explain."""
