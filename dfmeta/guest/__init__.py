"""Programs that run inside a guest: Python's standard library alone, nothing of dfmeta."""
