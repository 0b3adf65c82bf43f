"""Facts about a host, and the checks of them behind ``dfmeta flows``, ``trace`` and ``doctor``.

The checks are pure and take :mod:`dfmeta.doctor.facts`. The probes that gather facts are in the
packages that may import their libraries (``dfmeta/ovsdb/snapshot.py``,
``dfmeta/ovsdb/vswitchd.py``, ``dfmeta/host/host_facts.py``, ``dfmeta/apps/switch_facts.py``), or
here if the standard library is enough. This package and the probes change nothing on the host.
"""
