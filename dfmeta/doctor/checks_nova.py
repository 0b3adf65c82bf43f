"""Checks of Nova's metadata API: whether it accepts dfmeta's signature. Pure.

Nova's answers are those of ``nova/api/metadata/handler.py``. With [neutron] service_metadata_proxy
a request without dfmeta's headers gets 400, a wrong signature 403, and an instance that does not
exist, or not in that project, 404. Without it Nova ignores the headers, looks up the instance by
the address of the client, and answers 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.proxy.backends.nova.ask import NovaFact

_COMPARE: Final = (
    "give both the same value and `systemctl reload dfmeta-agent`. To compare without showing "
    "them, on both hosts: `grep -h ^metadata_proxy_shared_secret FILE | tr -d ' ' | sha256sum`"
)


@dataclass(frozen=True, slots=True)
class GuestFact:
    """Nova's answer to a signed request for a guest of this host."""

    port: str
    instance: str
    project: str
    status: int
    """0: there was no answer."""


def nova(fact: NovaFact, url: str, *, instance: str = "", project: str = "") -> Finding:
    """Check that a host of Nova's metadata API answers signed requests.

    :param url: URL of that host, for the commands of remedies.
    :param instance: the instance of this host in the request; empty: a made-up one was used.
    :param project: the instance's project.
    """
    where = f"Nova's metadata API at {fact.authority}"
    if fact.cause:
        return wrong("nova", f"{where}: {fact.cause}", f"{fact.remedy}; see `curl -sv {url}/`")
    if fact.status == HTTPStatus.FORBIDDEN:
        return wrong(
            "nova",
            f"{where} refuses dfmeta's signature (403): metadata_proxy_shared_secret here differs "
            "from [neutron] metadata_proxy_shared_secret in Nova's nova.conf",
            _COMPARE,
        )
    if fact.status == HTTPStatus.NOT_FOUND and fact.unsigned in (
        HTTPStatus.OK,
        HTTPStatus.NOT_FOUND,
    ):
        return wrong(
            "nova",
            f"{where} ignores dfmeta's headers (404, and {fact.unsigned} without them): [neutron] "
            "service_metadata_proxy is off in Nova, or this is not a metadata API",
            "on that host `crudini --set /etc/nova/nova.conf neutron service_metadata_proxy true`, "
            "and restart nova-api-metadata",
        )
    if fact.status == HTTPStatus.NOT_FOUND and instance:
        return wrong(
            "nova",
            f"{where} accepts dfmeta's signature and has no instance {instance} in project "
            f"{project or '(none)'} (404)",
            f"compare the project: `openstack server show {instance} -c project_id` shows Nova's, "
            "and `dfmeta ports` shows dfmeta's and its source",
        )
    if fact.status == (HTTPStatus.OK if instance else HTTPStatus.NOT_FOUND):
        return ok("nova", f"{where} accepts dfmeta's signature")
    return _other(fact, where, url)


def _other(fact: NovaFact, where: str, url: str) -> Finding:
    if fact.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return wrong(
            "nova",
            f"{where}, or a proxy in front of it, has failed ({fact.status})",
            "read its log (`journalctl -u nova-api-metadata` on that host); it needs Nova's "
            "database and message bus",
        )
    why = (
        "it is not a metadata API, or a proxy in front of it drops dfmeta's headers"
        if fact.status == HTTPStatus.BAD_REQUEST
        else "Nova never gives such an answer: another program listens there"
    )
    return wrong(
        "nova",
        f"{where} answers {fact.status} to a signed request: {why}",
        "set nova_metadata_host and nova_metadata_port to nova-api-metadata itself: there `curl "
        f"-s {url}/` lists versions such as latest",
    )


def guests(facts: Sequence[GuestFact], *, of: int) -> Finding:
    """Check that Nova knows the guests of this host in the projects that dfmeta sends.

    :param facts: answers for the queried guests, of hosts that accept dfmeta's signature.
    :param of: number of guests whose project is known.
    """
    answered = [fact for fact in facts if fact.status]
    if not answered:
        return unknown("nova-guests", "no Nova host has answered a request for a guest here")
    bound = f"{len(answered)} queried guests, of {of} with a project"
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
            f"compare the project: `openstack server show {absent[0].instance} -c project_id` "
            "shows Nova's, and `dfmeta ports` shows dfmeta's and its source",
        )
    if others:
        named = listed(f"{one.port} ({one.status})" for one in others)
        return wrong(
            "nova-guests",
            f"Nova answers neither 200 nor 404 for {len(others)} of {bound}: {named}",
            "read Nova's log: `journalctl -u nova-api-metadata` on that host",
        )
    return ok("nova-guests", f"Nova has the instance in that project for each of {bound}")
