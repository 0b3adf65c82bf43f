"""The admin API over records, its client, and the modules of both: requests, checks, OpenAPI."""
