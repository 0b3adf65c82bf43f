"""Construction of the backend from the configuration."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.conf import store as store_options
from dfmeta.proxy.application import Settings
from dfmeta.proxy.backend import Backend
from dfmeta.proxy.backends.nova.backend import NovaBackend
from dfmeta.proxy.backends.subports import Completing, Subports
from dfmeta.proxy.tokens import TokenMode
from dfmeta.wiring import nova_settings

if TYPE_CHECKING:
    from dfmeta.store.guest import dialects
    from dfmeta.store.guest.backend import Containers


def build(conf: cfg.ConfigOpts, containers: Containers | None = None) -> Backend:
    """Build the backend.

    :param containers: returns the records of containers; None: there are no attachments.
    :raises StoreError: when the store cannot be opened.
    """
    if conf.df_metadata.backend == "nova":
        return NovaBackend(nova_settings.build(conf))
    # Imported only for the store, since the import of SQLAlchemy takes a third of a second.
    from dfmeta.store.guest.backend import StoreBackend
    from dfmeta.wiring.database import puller, repository

    store = repository(conf.store.connection)
    host = socket.gethostname() if conf.store.defaults else None
    return StoreBackend(
        store,
        answers(conf),
        reader=puller(conf),
        host=host,
        containers=containers or (lambda _instance_id: None),
    )


def completing(conf: cfg.ConfigOpts, backend: Backend, subports: Subports) -> Backend:
    """Return the backend, or one that completes its network_data.json.

    :param subports: returns the VLANs of a VM.
    """
    return Completing(backend, subports) if conf.df_metadata.network_data_subports else backend


def answers(conf: cfg.ConfigOpts) -> dialects.Settings:
    """Return the settings of the store's answers."""
    from dfmeta.store.guest import dialects

    return dialects.Settings(
        ec2_tree=conf.store.ec2_tree,
        templates={name: conf.store[name] for name in store_options.TEMPLATES},
    )


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the settings of the WSGI application."""
    return Settings(
        timeout_answer=conf.df_metadata.timeout_answer,
        needs_project=conf.df_metadata.backend == "nova",
        refuse_forwarded=conf.df_metadata.refuse_forwarded,
        http_tokens=TokenMode(conf.store.http_tokens),
        http_tokens_of={
            instance: TokenMode(mode)
            for instance, mode in store_options.http_tokens_of(conf).items()
        },
    )
