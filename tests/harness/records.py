"""Records of a store, written as a push of the admin API writes them."""

from collections.abc import Mapping, Sequence

from dfmeta.store.db.record import KEEP, Keep, Kind, Network, Push
from dfmeta.store.db.repository import Repository


def push(
    repository: Repository,
    kind: Kind,
    record_id: str,
    *,
    content: Mapping[str, object] | bytes,
    networks: Sequence[Network] = (),
    http_tokens: str | Keep | None = KEEP,
) -> bool:
    """Write one half of a record; False if it was ignored because it is older."""
    push = Push(
        kind=kind, record_id=record_id, content=content, networks=networks, http_tokens=http_tokens
    )
    return repository.push_all([push])[0]
