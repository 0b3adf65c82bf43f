"""The host's own side: addresses, rules, routes and knobs of tap-metadata."""
