"""The host's side: addresses, rules, routes and settings of tap-metadata."""
