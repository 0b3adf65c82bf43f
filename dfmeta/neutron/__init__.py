"""Neutron's API. Alone speaks to Neutron."""
