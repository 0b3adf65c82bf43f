"""Defaults for instances without a record: of the store, of a host, of a project. Pure functions.

Defaults are records with ids that no instance can have: ``default:*`` for every instance,
``default:host:NAME`` for the instances on a host, ``default:project:ID`` for the instances of a
project. The more specific default overrides the more general one, member by member of the document
(RFC 7396); its user-data overrides as a whole.

Trust: host and project come from the host itself. A guest with an unverified identity gets no
defaults: there is no record whose project could confirm the identity.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dfmeta.store.db.record import Record, dump_document, merge_patch, parse_document
from dfmeta.store.guest.documents import hostname_of

EVERYWHERE: Final = "default:*"
OF_HOST: Final = "default:host:"
OF_PROJECT: Final = "default:project:"


def of_host(name: str) -> str:
    """Return the id of a host's defaults. Case makes no difference, as in DNS (RFC 4343)."""
    return f"{OF_HOST}{name.lower()}"


def of_project(project_id: str) -> str:
    """Return the id of a project's defaults. Case makes no difference, as in all ids."""
    return f"{OF_PROJECT}{project_id.lower()}"


def layers(*, host: str, project_id: str) -> tuple[str, ...]:
    """Return the ids of all defaults for an instance, the most general one first.

    :param project_id: empty: not known.
    """
    general = (EVERYWHERE, of_host(host))
    return (*general, of_project(project_id)) if project_id else general


def merged(
    layers: Sequence[Record], instance_id: str, *, instance_name: str, project_id: str
) -> Record | None:
    """Return a record made of defaults, or None if there are none.

    Its seed is derived from the seed of the most general default and the instance's id:
    ``random_seed`` is constant, and different for each instance.

    :param found: the existing defaults, the most general one first.
    :param instance_name: display name of the instance; empty: not known. If the defaults have no
        ``name`` or ``hostname``, the name is used, and a host name made of it.
    :raises StoreError: the document of a default is not a JSON object.
    """
    filled = [record for record in layers if not record.empty]
    if not filled:
        return None
    document: dict[str, Any] = {"name": instance_name, "hostname": hostname_of(instance_name)}
    document = {name: text for name, text in document.items() if text}
    for record in filled:
        document = merge_patch(document, parse_document(record.id, record.metadata))
    first, special = filled[0], filled[::-1]
    return Record(
        id=instance_id.lower(),
        seed=hmac.digest(first.seed, instance_id.lower().encode(), hashlib.sha256),
        created_at=first.created_at,
        updated_at=max(record.updated_at for record in filled),
        project_id=project_id or None,
        metadata=dump_document(document),
        userdata=next((layer.userdata for layer in special if layer.userdata is not None), None),
        http_tokens=next((layer.http_tokens for layer in special if layer.http_tokens), None),
    )


def with_own(record: Record, stored: Record | None) -> Record:
    """Return a record made of defaults, with the values of the instance's own, empty record.

    :param own: record of an instance that has posted a password and has nothing else; None: there
        is no such record.
    """
    if stored is None:
        return record
    return replace(
        record,
        seed=stored.seed,
        password=stored.password,
        http_tokens=stored.http_tokens or record.http_tokens,
    )
