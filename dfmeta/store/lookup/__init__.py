"""Upstream look-up: records that this store does not have, asked of another one."""
