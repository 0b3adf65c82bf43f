"""What is wrong with a database's URL, without showing its password."""

from __future__ import annotations

from sqlalchemy import URL

from dfmeta.exceptions import ConfigError

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
