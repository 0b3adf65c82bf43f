"""The options of the store."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup(
    name="store",
    title="The embedded store",
    help="Where instances' metadata is kept when backend = store.",
)

OPTS: Final = [
    cfg.StrOpt(
        "connection",
        default="sqlite:///${df_metadata.state_path}/store.db",
        secret=True,
        help=(
            "The store's database, as an SQLAlchemy URL: sqlite:///PATH, where an absolute PATH "
            "makes four slashes. The daemon and the dfmeta store command must name the same one, "
            "and both must be able to write the file and its folder. A missing file is created "
            "with mode 0600, its folder with 0700; a file with wider rights is narrowed to 0600. "
            "Its schema is brought up to date when it is opened; one that a newer dfmeta wrote is "
            "refused."
        ),
    ),
]
