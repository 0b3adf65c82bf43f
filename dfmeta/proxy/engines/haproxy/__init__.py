"""The engine ``haproxy``: one haproxy for the host answers plain requests, for backend nova.

:class:`~dfmeta.proxy.engines.haproxy.engine.Haproxy` is its door; the other modules are its parts.
"""
