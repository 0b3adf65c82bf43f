"""The commands of dfmeta."""
