"""The inspection of a host behind ``dfmeta doctor``, ``flows`` and ``trace``; it changes nothing.

:mod:`~dfmeta.doctor.table` has the checks, :mod:`~dfmeta.doctor.probes` reads what they judge.
"""
