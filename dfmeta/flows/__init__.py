"""The OpenFlow pipeline as pure values: nothing here has a socket, a clock or a configuration."""
