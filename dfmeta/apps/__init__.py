"""os-ken shims: they send what the pure parts return, and never compute what a flow is."""
