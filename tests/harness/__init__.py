"""A cloud's compute node on one machine: a switch, guests, Nova, the daemon, and cloud-init.

Everything lives in network namespaces and temporary folders that carry the pid of the process that
made them, and nothing of it outlives that process. Only the standard library is used here, so that
the demo and the tests stand on the same ground.
"""
