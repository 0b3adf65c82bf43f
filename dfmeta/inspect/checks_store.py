"""Judgements on the store: its database, its files, its tokens, and the store it asks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dfmeta.inspect.finding import Finding, listed, ok, wrong

LEAST_FREE: Final = 256 << 20
"""Bytes that have to be free where the store and the state are: SQLite's log grows before it is
written back, and a record's user-data may have 16 MiB."""
LEAST_SHARE: Final = 0.02
LEAST_INODES: Final = 100


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What the store's database is."""

    shown: str
    """Where it is, without a password."""
    file: bool = True
    """A file of this host (SQLite); else a server."""
    there: bool = True
    cut: bool = False
    """It has 0 bytes."""
    cause: str = ""
    """Why it does not answer; empty when it does."""
    revision: str | None = None
    """Its schema; None: it is empty."""
    known: Sequence[str] = ()
    """Schemas that this dfmeta knows, the newest last."""
    open_files: Sequence[str] = ()
    """Of its files, those that others than the owner may read or write."""
    strange: Sequence[str] = ()
    """Of its files, those of a user who may not have them."""
    rightful: str = "root"
    """User that they are to belong to."""


@dataclass(frozen=True, slots=True)
class LookupFacts:
    """What the store that ours asks has answered."""

    url: str
    status: int = 0
    cause: str = ""
    """Why there is no answer; empty when there is one."""
    date: str = ""


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What token_file is."""

    path: str
    there: bool = True
    cause: str = ""
    remedy: str = ""
    valid: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Room where state_path is."""

    free: int
    total: int
    """Bytes, for whoever is not root."""
    inodes: int | None = None
    """Files that may still be made; None: as many as one likes."""


def database(facts: StoreFacts, *, running: bool) -> Finding:
    """Whether the database answers.

    :param running: the daemon runs, and so has made its file.
    """
    if facts.file and not facts.there:
        if not running:
            return ok("store", f"{facts.shown} is not there yet: dfmeta-agent makes it")
        return wrong(
            "store",
            f"{facts.shown} is gone while dfmeta-agent runs: guests get 503",
            f"put a back-up back: `dfmeta store restore FILE` writes {facts.shown}; or, for an "
            "empty store, `systemctl restart dfmeta-agent`",
        )
    if facts.cut and running:
        return wrong(
            "store",
            f"{facts.shown} has been cut to 0 bytes while dfmeta-agent runs: guests get 503",
            f"put a back-up back: `dfmeta store restore FILE` writes {facts.shown}; or, for an "
            "empty store, `systemctl restart dfmeta-agent`",
        )
    if facts.cause and facts.file:
        return wrong(
            "store",
            f"{facts.shown} cannot be read: {facts.cause}",
            f"run doctor as its owner (`ls -l {facts.shown}`); see whether it is sound: "
            f"`sqlite3 {facts.shown} 'PRAGMA integrity_check'`, and else put a back-up back",
        )
    if facts.cause:
        return wrong(
            "store",
            f"PostgreSQL does not answer: {facts.shown}: {facts.cause}",
            "see that the server runs and takes this host's connections, and [store] connection: "
            "`pg_isready -h HOST -p PORT`",
        )
    return ok("store", f"{facts.shown} answers")


def schema(facts: StoreFacts, *, running: bool) -> Finding:
    """Whether the database has the schema of this dfmeta."""
    newest = facts.known[-1]
    if facts.revision == newest:
        return ok("store-schema", f"the schema is {newest}, this dfmeta's own")
    if facts.revision is not None and facts.revision not in facts.known:
        return wrong(
            "store-schema",
            f"the schema is {facts.revision}, made by a newer dfmeta; this one knows up to "
            f"{newest} and does not start with it",
            "install the newer dfmeta again; or, with the newer one, go back first: "
            f"`dfmeta store schema --to {newest}`",
        )
    what = "is empty" if facts.revision is None else f"has schema {facts.revision}"
    if running:
        return wrong(
            "store-schema",
            f"the database {what}, and the running dfmeta-agent needs {newest}: somebody has "
            "changed or replaced it",
            "`systemctl restart dfmeta-agent`, which brings it to its own",
        )
    return ok(
        "store-schema", f"the database {what}; dfmeta-agent brings it to {newest} when it starts"
    )


def files(facts: StoreFacts) -> Finding:
    """Whether the database's files are their owner's alone: they hold user-data and passwords."""
    if facts.open_files:
        return wrong(
            "store-files",
            f"others than the owner may read or write {listed(facts.open_files)}: user-data and "
            "passwords of guests stand there",
            f"`chmod 600 {' '.join(facts.open_files)}`",
        )
    if facts.strange:
        return wrong(
            "store-files",
            f"{listed(facts.strange)} belongs to another user than the daemon's, who may read and "
            "write it: user-data and passwords of guests stand there",
            f"`chown {facts.rightful}: {' '.join(facts.strange)}`",
        )
    return ok(
        "store-files",
        f"{facts.shown} belongs to the daemon's user or root, and is closed to others",
    )


def lookup(facts: LookupFacts) -> Finding:
    """Whether the store that ours asks answers, and takes what shows who we are."""
    what = f"the store at {facts.url}, which is asked for what ours does not have,"
    if facts.status == HTTPStatus.UNAUTHORIZED:
        return wrong(
            "lookup",
            f"{what} does not take our token (401)",
            "make another one there, `dfmeta token create --scope read`, and put it into [store] "
            "lookup_token_file; or mend lookup_issuer, lookup_client_id and lookup_client_secret",
        )
    if facts.status == HTTPStatus.FORBIDDEN:
        return wrong(
            "lookup",
            f"{what} takes our token and does not let it read (403)",
            "give it a token with the scope read: `dfmeta token create --scope read` on that host, "
            "or [store] lookup_scopes",
        )
    if facts.cause:
        return wrong(
            "lookup",
            f"{what} cannot be asked: {facts.cause}",
            "see that it runs and is reached from here, and [store] lookup_base_url: "
            f"`curl -sv {facts.url}/healthz`",
        )
    if facts.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return wrong(
            "lookup",
            f"{what} answers {facts.status}",
            f"read its log, and see [store] lookup_base_url: `curl -sv {facts.url}/healthz`",
        )
    return ok("lookup", f"the store at {facts.url} answers")


def tokens(facts: TokenFacts) -> Finding:
    """Whether the admin API's static tokens can be read, by the daemon alone."""
    if facts.cause:
        return wrong(
            "tokens",
            f"{facts.path}: {facts.cause}: the admin API takes no token of it",
            f"{facts.remedy}; `dfmeta token list` shows what it reads",
        )
    if not facts.there or not facts.valid:
        what = (
            "is not there" if not facts.there else f"has none that is valid ({facts.expired} old)"
        )
        return wrong(
            "tokens",
            f"{facts.path} {what}: nobody can use the admin API with a static token",
            "`dfmeta token create --scope read`, or take [store] token_file out",
        )
    old = f", {facts.expired} have expired" if facts.expired else ""
    return ok("tokens", f"{facts.path} has {facts.valid} valid tokens{old}")


def disk(facts: DiskFacts, path: str) -> Finding:
    """Whether there is room where the daemon writes."""
    least = min(LEAST_FREE, int(facts.total * LEAST_SHARE))
    no_files = facts.inodes is not None and facts.inodes < LEAST_INODES
    if facts.free < least or no_files:
        what = f"{facts.inodes} files" if no_files else f"{facts.free >> 20} MiB"
        return wrong(
            "disk",
            f"the disk of {path} has room for {what} more: addresses are not remembered over a "
            "restart, and the store takes no records, once it is full",
            f"make room: `df -h {path}`, `du -xh --max-depth=2 /var | sort -h | tail`",
        )
    return ok("disk", f"{facts.free >> 20} MiB are free for {path}")
