"""Construction of objects from the configuration, for the processes and the commands."""
