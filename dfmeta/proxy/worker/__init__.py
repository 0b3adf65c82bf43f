"""Worker processes: the engine that serves guests with several of them."""
