"""Checks of the store: its database, files and tokens, its disk, and the upstream store. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dfmeta.doctor.finding import Finding, listed, ok, wrong

LEAST_FREE: Final = 256 << 20
"""Bytes that have to be free on the disk of the store and the state: SQLite's log grows before it
is written back, and a record's user-data may have 16 MiB."""
LEAST_SHARE: Final = 0.02
LEAST_INODES: Final = 100


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store's database."""

    shown: str
    """Its path or URL, without the password."""
    file: bool = True
    """Whether it is a file of this host (SQLite); else it is a server (PostgreSQL)."""
    there: bool = True
    cut: bool = False
    """Whether the file has 0 bytes."""
    cause: str = ""
    """Why it does not answer; empty when it does."""
    revision: str | None = None
    """Revision of its schema; None: the database is empty."""
    known: Sequence[str] = ()
    """Revisions that this dfmeta knows, the newest last."""
    open_files: Sequence[str] = ()
    """Files of the database that users other than the owner may read or write."""
    strange: Sequence[str] = ()
    """Files of the database whose owner may not own them."""
    rightful: str = "root"
    """User that has to own the files."""


@dataclass(frozen=True, slots=True)
class LookupFacts:
    """The answer of the upstream store."""

    url: str
    status: int = 0
    cause: str = ""
    """Why there is no answer; empty when there is one."""
    date: str = ""
    """The answer's Date header, unparsed."""


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The file [store] token_file."""

    path: str
    there: bool = True
    cause: str = ""
    remedy: str = ""
    valid: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Free space on the disk of state_path."""

    free: int
    total: int
    """Both in bytes; *free* leaves out the space that is reserved for root."""
    inodes: int | None = None
    """Number of files that can still be made; None: there is no limit."""


def database(facts: StoreFacts, *, running: bool) -> Finding:
    """Check that the database answers.

    :param running: the daemon runs, and so has made its file.
    """
    if facts.file and not facts.there:
        if not running:
            return ok("store", f"{facts.shown} does not exist yet: dfmeta-agent makes it")
        return wrong(
            "store",
            f"{facts.shown} was deleted while dfmeta-agent runs: guests get 503",
            f"restore a backup: `dfmeta store restore FILE` writes {facts.shown}; or, for an "
            "empty store, `systemctl restart dfmeta-agent`",
        )
    if facts.cut and running:
        return wrong(
            "store",
            f"{facts.shown} was truncated to 0 bytes while dfmeta-agent runs: guests get 503",
            f"restore a backup: `dfmeta store restore FILE` writes {facts.shown}; or, for an "
            "empty store, `systemctl restart dfmeta-agent`",
        )
    if facts.cause and facts.file:
        return wrong(
            "store",
            f"{facts.shown} cannot be read: {facts.cause}",
            f"run doctor as its owner (`ls -l {facts.shown}`); check whether it is damaged: "
            f"`sqlite3 {facts.shown} 'PRAGMA integrity_check'`, and restore a backup if it is",
        )
    if facts.cause:
        return wrong(
            "store",
            f"PostgreSQL does not answer: {facts.shown}: {facts.cause}",
            "check that the server runs and accepts connections from this host, and [store] "
            "connection: `pg_isready -h HOST -p PORT`",
        )
    return ok("store", f"{facts.shown} answers")


def schema(facts: StoreFacts, *, running: bool) -> Finding:
    """Check that the database has the schema of this dfmeta."""
    newest = facts.known[-1]
    if facts.revision == newest:
        return ok("store-schema", f"the schema is {newest}, this dfmeta's own")
    if facts.revision is not None and facts.revision not in facts.known:
        return wrong(
            "store-schema",
            f"the schema is {facts.revision}, made by a newer dfmeta; this dfmeta knows schemas up "
            f"to {newest} and does not start with a newer one",
            "install the newer dfmeta again, or restore a backup of this one: "
            "`dfmeta store restore FILE`",
        )
    state = "is empty" if facts.revision is None else f"has schema {facts.revision}"
    if running:
        return wrong(
            "store-schema",
            f"the database {state}, and the running dfmeta-agent needs {newest}: another program "
            "has changed or replaced the database",
            "`systemctl restart dfmeta-agent`, which migrates it to that schema",
        )
    return ok(
        "store-schema", f"the database {state}; dfmeta-agent migrates it to {newest} at its start"
    )


def files(facts: StoreFacts) -> Finding:
    """Check that only the owner can access the database's files.

    They contain user-data and passwords of guests.
    """
    if facts.open_files:
        return wrong(
            "store-files",
            f"users other than the owner may read or write {listed(facts.open_files)}: these files "
            "contain user-data and passwords of guests",
            f"`chmod 600 {' '.join(facts.open_files)}`",
        )
    if facts.strange:
        return wrong(
            "store-files",
            f"{listed(facts.strange)} belongs to another user than the daemon's: that user can "
            "read and write user-data and passwords of guests",
            f"`chown {facts.rightful}: {' '.join(facts.strange)}`",
        )
    return ok(
        "store-files",
        f"{facts.shown} belongs to the daemon's user or root, and is closed to other users",
    )


def lookup(facts: LookupFacts) -> Finding:
    """Check that the upstream store answers and accepts the token of lookups."""
    store = f"the upstream store at {facts.url}"
    if facts.status == HTTPStatus.UNAUTHORIZED:
        return wrong(
            "lookup",
            f"{store} does not accept the token of lookups (401)",
            "make a token there, `dfmeta token create --scope read`, and put it into [store] "
            "lookup_token_file; or correct lookup_issuer, lookup_client_id and "
            "lookup_client_secret",
        )
    if facts.status == HTTPStatus.FORBIDDEN:
        return wrong(
            "lookup",
            f"{store} accepts the token of lookups, but it has no right to read (403)",
            "use a token with the scope read: `dfmeta token create --scope read` on that host, or "
            "[store] lookup_scopes",
        )
    if facts.cause:
        return wrong(
            "lookup",
            f"{store} cannot be queried: {facts.cause}",
            "check that it runs and can be reached from this host, and [store] lookup_base_url: "
            f"`curl -sv {facts.url}/healthz`",
        )
    if facts.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return wrong(
            "lookup",
            f"{store} answers {facts.status}",
            f"read its log, and check [store] lookup_base_url: `curl -sv {facts.url}/healthz`",
        )
    return ok("lookup", f"{store} answers")


def tokens(facts: TokenFacts) -> Finding:
    """Check that the daemon, and no other user, can read the admin API's static tokens."""
    if facts.cause:
        return wrong(
            "tokens",
            f"{facts.path}: {facts.cause}: the admin API accepts no token of this file",
            f"{facts.remedy}; `dfmeta token list` shows the tokens that can be read",
        )
    if not facts.there or not facts.valid:
        state = "does not exist" if not facts.there else f"has no valid token ({facts.expired} old)"
        return wrong(
            "tokens",
            f"{facts.path} {state}: no client can use the admin API with a static token",
            "`dfmeta token create --scope read`, or remove [store] token_file",
        )
    old = f", {facts.expired} have expired" if facts.expired else ""
    return ok("tokens", f"{facts.path} has {facts.valid} valid tokens{old}")


def disk(facts: DiskFacts, path: str) -> Finding:
    """Check that the disk of state_path has room."""
    least = min(LEAST_FREE, int(facts.total * LEAST_SHARE))
    no_files = facts.inodes is not None and facts.inodes < LEAST_INODES
    if facts.free < least or no_files:
        room = f"{facts.inodes} more files" if no_files else f"{facts.free >> 20} MiB more"
        return wrong(
            "disk",
            f"the disk of {path} has room for {room}: when it is full, addresses are forgotten at "
            "a restart, and the store accepts no records",
            f"free some space: `df -h {path}`, `du -xh --max-depth=2 /var | sort -h | tail`",
        )
    return ok("disk", f"{facts.free >> 20} MiB are free for {path}")
