"""Errors about a database or its URL that do not show its password."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from dfmeta.errors import ConfigError, StoreBusyError

REMEDY = "Give sqlite:////path/to/store.db, or postgresql://USER@HOST/DATABASE"


def parse_url(url: str) -> URL:
    """Return the parts of a URL.

    :raises ConfigError: it is not a URL.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise wrong_url(url, "it is not a URL") from None


def wrong_url(url: URL | str, cause: str, remedy: str = REMEDY) -> ConfigError:
    """Return the error for a URL that cannot work.

    :param url: a string is shown only if it cannot contain a password.
    """
    if isinstance(url, URL):
        shown = url.render_as_string(hide_password=True)
    else:
        shown = "(hidden)" if "@" in url else url
    return ConfigError(option="[store] connection", value=shown, cause=cause, remedy=remedy)


def in_use(shown: str) -> StoreBusyError:
    """Return the error for a database that another program uses, where no other one may.

    :param shown: its path or URL, without a password.
    """
    return StoreBusyError(
        cause=f"{shown}: another program has it open; nothing was changed",
        remedy="Stop every dfmeta-agent and dfmeta-store that uses it, on all hosts, and try again",
    )
