"""The engine that serves guests with several worker processes."""
