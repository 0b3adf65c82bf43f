"""The backends: where the answers to guests come from."""
