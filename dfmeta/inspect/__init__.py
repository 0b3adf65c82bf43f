"""What ``dfmeta flows``, ``trace`` and ``doctor`` go by: facts of a host, and judgements on them.

Judgements are pure and take :mod:`dfmeta.inspect.facts`; the probes that gather facts stand where
their libraries may be imported (``dfmeta/ports/look.py``, ``host/look.py``, ``apps/look.py``), or
here where the standard library does (:mod:`~dfmeta.inspect.jsonrpc`,
:mod:`~dfmeta.inspect.vswitchd`). Nothing in this package or in the probes changes anything.
"""
