"""The table numbers and the priority of the pipeline, from the options."""

from __future__ import annotations

from typing import Any

from dfmeta.flows.pipeline import Layout


def layout_of(group: Any) -> Layout:
    """Return the layout of the pipeline on the switch.

    :param group: the options ``[df_metadata]``.
    """
    return Layout(group.table_base, group.classification_table, group.hook_priority)
