"""Measurements. Nothing here is asserted; the numbers depend on the machine."""
