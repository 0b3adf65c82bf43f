"""The HTTP side: the registry identifies the guest of a request, a backend makes the answer."""
