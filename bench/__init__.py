"""Measurements. Nothing here is asserted; figures are of the machine that they were taken on."""
