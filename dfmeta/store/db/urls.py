"""What is wrong with a database, or with its URL, without showing its password."""

from __future__ import annotations

from sqlalchemy import URL

from dfmeta.exceptions import ConfigError, StoreBusyError

REMEDY = "Give sqlite:////path/to/store.db, or postgresql://USER@HOST/DATABASE"


def wrong_url(url: URL | str, cause: str, remedy: str = REMEDY) -> ConfigError:
    """Return the error for a URL that cannot work.

    :param url: a text is shown only if no password can be in it.
    """
    if isinstance(url, URL):
        shown = url.render_as_string(hide_password=True)
    else:
        shown = "(hidden)" if "@" in url else url
    return ConfigError(option="[store] connection", value=shown, cause=cause, remedy=remedy)


def in_use(shown: str) -> StoreBusyError:
    """Return the error for a database that has to be nobody else's for a moment, and is not.

    :param shown: where it is, without a password.
    """
    return StoreBusyError(
        cause=f"{shown}: another program has it open, and it was left as it is",
        remedy="Stop every dfmeta-agent and dfmeta-store that uses it, on all hosts, and try again",
    )
