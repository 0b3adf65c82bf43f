"""Nova's metadata API as the backend: signed requests, answers, and explanations of failures."""
