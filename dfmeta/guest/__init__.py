"""Programs that run inside a guest: they use only Python's standard library."""
