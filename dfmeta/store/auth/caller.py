"""Authorization for the store's admin API: bearer tokens (RFC 6750) and their scopes.

The messages of answers are those of the library that hollow-metadataservice uses, because clients
may compare them. An operation accepts several scopes, and any one of them is sufficient: a general
one (``write``), the operation's own (``delete``), or the one of the operation on one kind of record
(``metadata:delete:userdata``).

Trust: the header comes from the client. Nothing of it is trusted before a verifier has found the
token's hash in the file, or verified the issuer's signature. No part of a token is logged or sent
back; the scopes in an answer are those that the file or the issuer has granted.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from dfmeta.errors import Forbidden, Unauthorized
from dfmeta.http.client import TOKEN_MAX

EXPECTED: Final = 'expected format: "Bearer token"'
MISSING: Final = f"missing authorization header, {EXPECTED}"
MALFORMED: Final = f"invalid authorization header, {EXPECTED}"
INVALID: Final = "invalid auth token"
DENIED: Final = "not authorized, missing required scope"
SCOPES_SHOWN: Final = 32
"""Maximum number of a token's scopes that an answer names."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""``b64token`` of RFC 6750, 2.1."""

Operation = Literal["upsert", "read", "delete"]

PREFIX: Final = "metadata"
"""Name of the service, the prefix of scopes for one kind of record."""
KINDS: Final = ("metadata", "userdata")
OPERATIONS: Final[tuple[Operation, ...]] = ("upsert", "read", "delete")
_GENERAL: Final[dict[Operation, tuple[str, ...]]] = {
    "upsert": ("write", "create", "update"),
    "read": ("read",),
    "delete": ("write", "delete"),
}


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the admin API whose token is valid."""

    name: str
    """"token NAME" of the file, or "subject NAME" of the issuer; printable ASCII."""
    scopes: frozenset[str]


class Verifier(Protocol):
    """Verifies one kind of token."""

    def client(self, token: str) -> Client | None:
        """Return the client of *token*, any text; None if this verifier does not accept it.

        :raises AuthUnavailable: the token cannot be verified at the moment.
        """


class Authorizer:
    """Decides whether a request is allowed; the first verifier that accepts its token decides.

    :param verifiers: the cheap ones first.
    """

    def __init__(self, *verifiers: Verifier) -> None:
        self._verifiers = verifiers

    def authorize(self, header: str | None, accepted: Collection[str]) -> Client:
        """Return the client of an allowed request.

        :param header: value of the request's Authorization, unchecked; None: absent.
        :param accepted: scopes of which any one is sufficient.
        :raises Unauthorized: there is no valid token.
        :raises Forbidden: the token has none of *accepted*.
        :raises AuthUnavailable: the token cannot be verified at the moment.
        """
        token = bearer_token(header)
        for verifier in self._verifiers:
            client = verifier.client(token)
            if client is None:
                continue
            if client.scopes.isdisjoint(accepted):
                have = ",".join(sorted(client.scopes)[:SCOPES_SHOWN])
                denied = f"{DENIED}. Have: {have}; Need: {','.join(accepted)}"
                raise Forbidden(message=denied, client=client.name)
            return client
        raise Unauthorized(message=INVALID)


def bearer_token(header: str | None) -> str:
    """Return the token in an Authorization header, which comes from the client, unchecked.

    :raises Unauthorized: the header has no well-formed bearer token.
    """
    if not header or not header.strip(" \t"):
        raise Unauthorized(message=MISSING)
    scheme, _, token = header.strip(" \t").partition(" ")
    token = token.lstrip(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized(message=MALFORMED)
    if len(token) > TOKEN_MAX or not _TOKEN.fullmatch(token):
        raise Unauthorized(message=INVALID)
    return token


def accepted_scopes(operation: Operation, kind: str) -> tuple[str, ...]:
    """Return the scopes of which any one is sufficient, in hollow-metadataservice's order.

    :param kind: one of :data:`KINDS`; it does not come from the client.
    :raises KeyError: *operation* is unknown.
    """
    general = _GENERAL[operation]
    narrow = (f"{PREFIX}:{action}:{kind}" for action in general if action != "write")
    return (*general, *narrow)


def scopes_for_any(operation: Operation) -> tuple[str, ...]:
    """Return the scopes of which any one is sufficient for records of any kind."""
    return tuple(dict.fromkeys(name for kind in KINDS for name in accepted_scopes(operation, kind)))


def all_scopes() -> tuple[str, ...]:
    """Return every scope that an operation accepts, the general ones first."""
    each = (accepted_scopes(operation, kind) for operation in OPERATIONS for kind in KINDS)
    names = dict.fromkeys(name for names in each for name in names)
    return tuple(sorted(names, key=lambda name: ":" in name))
