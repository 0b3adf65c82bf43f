"""``dfmeta token``: the static tokens of the store's admin API."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click
from oslo_config import cfg

from dfmeta.cli.common import config_options, group, listing_options, print_rows
from dfmeta.errors import ConfigError, NoTokenError, RecordError
from dfmeta.runtime import clock
from dfmeta.store.api.representations import timestamp
from dfmeta.store.auth import caller, tokens
from dfmeta.store.auth import tokens as static_tokens

COLUMNS: Final = {
    "name": "NAME",
    "scopes": "SCOPES",
    "created_at": "CREATED",
    "expires_at": "EXPIRES",
    "state": "STATE",
}
DROP: Final = ("created_at",)
"""Columns that are left out on a narrow terminal."""
_DURATION: Final = re.compile(r"([0-9]{1,6})([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@group("token")
def token() -> None:
    """Create, list and revoke the static tokens of the store's admin API.

    Their hashes are stored in the file that [store] token_file names. Changes take effect without a
    restart of the daemon.
    """


@token.subcommand(
    "create",
    "dfmeta token create --scope read",
    "dfmeta token create --scope read --scope write --name deployer --expires 30d",
    failed="the token file cannot be written",
)
@config_options
@click.option(
    "--scope",
    "names",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="Scope of the token: read, write, create, update, delete, or one of these for one kind of "
    "record, such as metadata:read:userdata. Repeatable. dfmeta store put --url needs read and "
    "write.",
)
@click.option(
    "--name",
    default="",
    help="Name of the token, with which it is revoked. Default: token-1, or the next free number.",
)
@click.option(
    "--expires",
    metavar="TIME",
    help="Expiry of the token: a duration such as 90m, 12h, 30d or 52w, or a time such as "
    "2030-01-31 or 2030-01-31T12:00:00Z (UTC unless a zone is given). Default: it does not expire.",
)
def create(conf: cfg.ConfigOpts, *, names: tuple[str, ...], name: str, expires: str | None) -> None:
    """Create a token, store its hash and print the token. It cannot be shown again."""
    now = datetime.now(UTC).replace(microsecond=0)
    grant = static_tokens.Grant(
        scopes=_scopes(names),
        created=now,
        name=name,
        expires=None if expires is None else parse_expiry(expires, now),
    )
    path = _token_file(conf)
    made = static_tokens.new_token()
    added = static_tokens.add(path, grant, made)
    # The token alone goes to stdout, so that a script can read it.
    click.echo(made)
    ends = f"valid until {timestamp(added.expires)}" if added.expires else "without expiry"
    click.echo(f"{added.name}: created, {ends}, with {', '.join(added.scopes)}", err=True)


@token.subcommand("list", "dfmeta token list", failed="the file cannot be read")
@listing_options
def list_tokens(conf: cfg.ConfigOpts, *, fmt: str, wide: bool) -> None:
    """List the names and scopes of the tokens; the tokens themselves cannot be shown."""
    now = clock.wall()
    rows = [_row(each, now) for each in tokens.read_tokens(_token_file(conf))]
    print_rows(rows, COLUMNS, fmt, drop=DROP, wide=wide)


@token.subcommand("revoke", "dfmeta token revoke deployer", failed="there is no such token")
@config_options
@click.argument("name")
def revoke(conf: cfg.ConfigOpts, name: str) -> None:
    """Revoke the token NAME: the daemon refuses it from the next request on."""
    if not static_tokens.remove(_token_file(conf), name):
        raise NoTokenError(cause=f"no token named {name}")
    click.echo(f"{name}: revoked")


def parse_expiry(text: str, now: datetime) -> datetime:
    """Return the expiry of a token that is created *now*.

    :param text: the operator's input: a number with a unit, or a date or time of ISO 8601.
    :raises RecordError: when it has another form, or is not after *now*.
    """
    try:
        duration = _DURATION.fullmatch(text.strip())
        if duration:
            moment = now + timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        else:
            moment = datetime.fromisoformat(text.strip())
            # Converted to UTC here: at the limits of the calendar the conversion overflows.
            moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _wrong_expiry(text, "it is not a time") from error
    if moment <= now:
        raise _wrong_expiry(text, "it is in the past")
    return moment


def _wrong_expiry(text: str, cause: str) -> RecordError:
    remedy = "Give 90m, 12h, 30d or 52w, or a future time such as 2030-01-31T12:00:00Z"
    return RecordError(what="--expires", value=text, cause=cause, remedy=remedy)


def _scopes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the scopes of all ``--scope`` options; each may list several with commas or spaces."""
    given = dict.fromkeys(word for name in names for word in re.split(r"[\s,]+", name) if word)
    unknown = [scope for scope in given if scope not in caller.all_scopes()]
    if unknown or not given:
        raise RecordError(
            what="--scope",
            value=unknown[0] if unknown else "",
            cause="no operation of the admin API requires it",
            remedy=f"Give some of {', '.join(caller.all_scopes())}",
        )
    return tuple(given)


def _token_file(conf: cfg.ConfigOpts) -> Path:
    path = conf.store.token_file
    if not path:
        raise ConfigError(
            option="[store] token_file",
            value="",
            cause="it is not set, so there is no file for tokens",
            remedy="Set it in the daemon's configuration, for example to /etc/dfmeta/tokens, and "
            "name that configuration with --config-file",
        )
    return Path(path)


def _row(token: tokens.StaticToken, now: float) -> dict[str, object]:
    return {
        "name": token.name,
        "scopes": list(token.scopes),
        "created_at": timestamp(token.created) if token.created else None,
        "expires_at": timestamp(token.expires) if token.expires else None,
        "state": "expired" if token.expired(now) else "valid",
    }
