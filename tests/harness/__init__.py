"""A cloud's compute node on one machine: a switch, guests, Nova, the daemon, and cloud-init.

Everything is in network namespaces and temporary directories whose names have the pid of the
process that created them, and is removed when that process ends. The modules that the demo needs
use only the standard library.
"""
