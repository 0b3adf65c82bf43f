"""States of OVSDB in which dfmeta's ports cannot be created without harm to others."""

from __future__ import annotations

from collections.abc import Sequence


class TapElsewhereError(Exception):
    """A port of another bridge has the name of tap-metadata, or one of
    :class:`~dfmeta.model.MetaNames`.

    :param owner: the integration bridge of the dfmeta that created the port; None: another program
        created it.
    """

    def __init__(self, tap: str, bridge: str, *, owner: str | None) -> None:
        super().__init__(f"{tap} is a port of {bridge}")
        self.tap, self.bridge, self.owner = tap, bridge, owner


class MetaDatapathError(Exception):
    """The second bridge has ports of others, and another datapath than the integration bridge.

    Patch ports connect bridges of one datapath only, and a change of the datapath would make the
    ports of others anew.

    :param bridge: name of the second bridge.
    :param found: its datapath_type.
    :param wanted: the integration bridge's.
    :param others: names of the ports of others.
    """

    def __init__(self, bridge: str, *, found: str, wanted: str, others: Sequence[str]) -> None:
        super().__init__(
            f"{bridge} has datapath_type {found}, the integration bridge has {wanted}, and "
            f"{bridge} has ports of others: {', '.join(others)}. Set another [df_metadata] "
            f"meta_bridge, or remove these ports"
        )
        self.bridge, self.found, self.wanted, self.others = bridge, found, wanted, others
