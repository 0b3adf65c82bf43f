"""Upstream lookup: queries another store for records that this store does not have."""
