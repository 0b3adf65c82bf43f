"""The OpenFlow pipeline as pure values: this package uses no socket, clock or configuration."""
