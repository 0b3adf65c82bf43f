"""dfmeta: instance metadata for every guest on an Open vSwitch host."""
