"""Judgements on Nova's metadata API: whether it takes what we sign. Pure.

What Nova answers to what, read in ``nova/api/metadata/handler.py``: with [neutron]
service_metadata_proxy a request without our headers gets 400, one whose signature is wrong 403, an
instance that is not there, or not in that project, 404. Without it the headers are not looked at:
whoever asks is looked for by its address, and gets 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong

_COMPARE: Final = (
    "give both the same value and `systemctl reload dfmeta-agent`. To compare without showing "
    "them, on both hosts: `grep -h ^metadata_proxy_shared_secret FILE | tr -d ' ' | sha256sum`"
)


@dataclass(frozen=True, slots=True)
class NovaFact:
    """What one host of nova_metadata_host answers to a signed request."""

    authority: str
    """HOST:PORT."""
    status: int = 0
    """0: there was no answer."""
    unsigned: int = 0
    """The status of the same request without our headers; 0: it was not sent."""
    cause: str = ""
    """Why there was no answer."""
    remedy: str = ""
    date: str = ""
    """The answer's Date, as it came."""

    @property
    def takes_signature(self) -> bool:
        """Whether its status is one that it gives by what is signed, and not by the address."""
        looks = self.unsigned not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
        found = self.status == HTTPStatus.NOT_FOUND and looks
        return not self.cause and (found or self.status == HTTPStatus.OK)


@dataclass(frozen=True, slots=True)
class GuestFact:
    """What Nova answers to a signed request for a guest of this host."""

    port: str
    instance: str
    project: str
    status: int
    """0: there was no answer."""


def nova(fact: NovaFact, url: str, *, instance: str = "", project: str = "") -> Finding:
    """Whether a host of Nova's metadata API answers what we sign.

    :param url: the host's, for commands.
    :param instance: a real one, of this host, that was asked for; empty: a made-up one was.
    :param project: its project.
    """
    where = f"Nova's metadata API at {fact.authority}"
    if fact.cause:
        return wrong("nova", f"{where}: {fact.cause}", f"{fact.remedy}; see `curl -sv {url}/`")
    if fact.status == HTTPStatus.FORBIDDEN:
        return wrong(
            "nova",
            f"{where} refuses our signature (403): the secrets differ, "
            "metadata_proxy_shared_secret here and [neutron] metadata_proxy_shared_secret in "
            "Nova's nova.conf",
            _COMPARE,
        )
    if fact.status == HTTPStatus.NOT_FOUND and fact.unsigned in (
        HTTPStatus.OK,
        HTTPStatus.NOT_FOUND,
    ):
        return wrong(
            "nova",
            f"{where} does not look at who is asking (404, and {fact.unsigned} without our "
            "headers): [neutron] service_metadata_proxy is off in Nova, or it is no metadata API",
            "on that host `crudini --set /etc/nova/nova.conf neutron service_metadata_proxy true`, "
            "and restart nova-api-metadata",
        )
    if fact.status == HTTPStatus.NOT_FOUND and instance:
        return wrong(
            "nova",
            f"{where} takes our signature and has no instance {instance} in project "
            f"{project or '(none)'} (404)",
            f"see whose it is: `openstack server show {instance} -c project_id`, and where ours "
            "comes from: `dfmeta ports`",
        )
    if fact.status == (HTTPStatus.OK if instance else HTTPStatus.NOT_FOUND):
        return ok("nova", f"{where} takes our signature")
    return _other(fact, where, url)


def _other(fact: NovaFact, where: str, url: str) -> Finding:
    if fact.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return wrong(
            "nova",
            f"{where} has failed ({fact.status}), or what stands before it",
            "read its log (`journalctl -u nova-api-metadata` on that host); it needs Nova's "
            "database and message bus",
        )
    why = (
        "it is no metadata API, or what stands before it drops our headers"
        if fact.status == HTTPStatus.BAD_REQUEST
        else "Nova's would not: something else listens there"
    )
    return wrong(
        "nova",
        f"{where} answers {fact.status} to a signed request: {why}",
        "have nova_metadata_host and nova_metadata_port lead to nova-api-metadata itself: "
        f"`curl -s {url}/` lists versions such as latest there",
    )


def guests(facts: Sequence[GuestFact], *, of: int) -> Finding:
    """Whether Nova has the guests of this host in the projects that are sent with them.

    :param facts: of the guests that were asked about, at hosts that take our signature.
    :param of: how many guests there are that have a project.
    """
    answered = [fact for fact in facts if fact.status]
    if not answered:
        return unknown("nova-guests", "no host of Nova's has answered for a guest of this host")
    bound = f"{len(answered)} asked about, of {of} guests with a project"
    absent = [fact for fact in answered if fact.status == HTTPStatus.NOT_FOUND]
    others = [fact for fact in answered if fact.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)]
    if absent:
        named = listed(
            f"{one.port} (instance {one.instance}, project {one.project})" for one in absent
        )
        return wrong(
            "nova-guests",
            f"Nova has no such instance in that project (404) for {len(absent)} of {bound}: "
            f"{named}",
            f"see whose it is: `openstack server show {absent[0].instance} -c project_id`, and "
            "where ours comes from: `dfmeta ports`",
        )
    if others:
        named = listed(f"{one.port} ({one.status})" for one in others)
        return wrong(
            "nova-guests",
            f"Nova answers neither 200 nor 404 for {len(others)} of {bound}: {named}",
            "read its log: `journalctl -u nova-api-metadata` on that host",
        )
    return ok("nova-guests", f"Nova has the instance in that project for each of {bound}")
