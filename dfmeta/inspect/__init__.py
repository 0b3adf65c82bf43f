"""What ``dfmeta flows``, ``trace`` and ``doctor`` go by: facts of a host, and judgements on them.

Judgements are pure and take :mod:`dfmeta.inspect.facts`; the probes that gather facts stand where
their libraries may be imported (``dfmeta/ports/ovsdb_facts.py``, ``dfmeta/host/host_facts.py``,
``dfmeta/apps/switch_facts.py``), or here where the standard library does
(:mod:`~dfmeta.inspect.jsonrpc`, :mod:`~dfmeta.inspect.vswitchd`). Nothing in this package or in the
probes changes anything.
"""
