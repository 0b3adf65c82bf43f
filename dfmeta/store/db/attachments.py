"""Reads and writes attachments in the database."""

from __future__ import annotations

from dfmeta.store.db.database import Database


class Attachments:
    """The tables of attachments, which hosts may share.

    :param database: opened by the caller, and closed by it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
