"""Who is at an endpoint: the registry, keys, slots and numbers. Knows no HTTP, no OpenFlow."""
