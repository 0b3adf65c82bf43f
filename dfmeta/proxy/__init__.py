"""The HTTP side: who asks is the registry's to say, what is answered a backend's."""
