"""Facts about a host, and the checks of them behind ``dfmeta flows``, ``trace`` and ``doctor``.

The checks are pure and take :mod:`dfmeta.inspect.facts`. The probes that gather facts are in the
packages that may import their libraries (``dfmeta/ports/ovsdb_facts.py``,
``dfmeta/host/host_facts.py``, ``dfmeta/apps/switch_facts.py``), or here if the standard library is
enough (:mod:`~dfmeta.inspect.jsonrpc`, :mod:`~dfmeta.inspect.vswitchd`). This package and the
probes change nothing on the host.
"""
