"""Nova's metadata API as the backend: signed requests, its answers, its failures in words."""
