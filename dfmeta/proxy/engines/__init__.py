"""The engines: how guests' connections are accepted and answered."""
