"""A record as guests get it: the dialects' documents, entity tags, defaults."""
