"""The pool of connections should take no lock of the hub in an OS thread."""

import logging

from dfmeta.store.db.dialect import engine_of


def test_pool_logs_nothing() -> None:
    logger = engine_of("sqlite://").pool.logger
    assert isinstance(logger, logging.Logger)
    assert not logger.isEnabledFor(logging.CRITICAL)
