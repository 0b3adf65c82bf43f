"""The admin API over records, its client, and what they share: requests, checks, OpenAPI."""
