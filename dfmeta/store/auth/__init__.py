"""Clients of the admin API: tokens of a file, OIDC, scopes."""
