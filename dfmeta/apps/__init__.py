"""os-ken shims: they send the flows that the pure parts return, and never compute flows."""
