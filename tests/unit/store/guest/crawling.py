"""Every path that listings name, as guests' programs follow them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dfmeta.model import Answer

Ask = Callable[..., Answer]


def crawl_ec2(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield what cloud-init fetches of a tree (cloudinit/sources/helpers/ec2.py)."""
    listing = ask(folder)
    yield folder, listing
    for field in listing.body.decode().splitlines():
        if field.endswith("/"):
            yield from crawl_ec2(ask, f"{folder}{field}")
            continue
        number, equals, _name = field.partition("=")
        leaf = f"{folder}{number}/openssh-key" if equals else f"{folder}{field}"
        yield leaf, ask(leaf)


def crawl_equinix(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield a tree whose listings do not tell folders from items."""
    listing = ask(folder)
    yield folder, listing
    for name in listing.body.decode().splitlines():
        path = f"{folder}/{name.removesuffix('/')}"
        inner = name.endswith("/") or name in ("operating-system", "license-activation", "spot")
        if inner:
            yield from crawl_equinix(ask, path)
        else:
            yield path, ask(path)


def crawl_flat(ask: Ask, folder: str) -> Iterator[tuple[str, Answer]]:
    """Yield a folder of files."""
    listing = ask(folder)
    yield folder, listing
    for name in listing.body.decode().splitlines():
        yield f"{folder}/{name}", ask(f"{folder}/{name}")


def crawl(ask: Ask, *, ec2_tree: str = "cloud-init") -> Iterator[tuple[str, Answer]]:
    """Yield every path that a listing names, from the roots down, with its answer."""
    yield "/", ask("/")
    for version in ask("/").body.decode().splitlines():
        if version == "2009-04-04" and ec2_tree == "equinix":
            yield from crawl_equinix(ask, f"/{version}")
        else:
            yield from crawl_ec2(ask, f"/{version}/")
    yield "/openstack", ask("/openstack")
    for version in ask("/openstack").body.decode().splitlines():
        yield from crawl_flat(ask, f"/openstack/{version}")
    yield from crawl_flat(ask, "/nocloud")
