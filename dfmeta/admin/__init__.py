"""The admin listener: health, metrics, listings, the status page, and its server."""
