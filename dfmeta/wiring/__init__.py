"""From the configuration to objects: what the processes and the commands share."""
