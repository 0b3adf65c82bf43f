"""Identity from the XML files of libvirt's domains on this host.

The files are read instead of libvirt's API: they contain all necessary values. The library has no
wheel, blocks the whole process in C, and would only be a second path to the same values.

libvirt writes ``NAME.xml`` below /run/libvirt/qemu for each active domain (replaced as a whole,
deleted when the domain ends) and below /etc/libvirt/qemu for each defined domain.

Only active domains give the instance of a port. A definition gives the project and the name of an
instance that is already known.
"""

import logging

from dfmeta import errors, metrics
from dfmeta.runtime import threads
from dfmeta.runtime.throttle import FIRST_PAUSE, LogThrottle
from dfmeta.sources.domain import Domain, Folders, Scan, match
from dfmeta.sources.source import FIELDS, Ownership, PortQuery

LOG = logging.getLogger(__name__)


class LibvirtSource:
    """Instance, project and name from the domains on this host.

    Scans run one at a time in an OS thread, so that a disk that hangs does not block the hub. All
    queries that arrive during a scan share the next scan.
    """

    name: metrics.IdentitySource = "libvirt"
    gives = frozenset(FIELDS)
    unverified = False
    subports = False
    by_instance = False
    timeout = 2.0
    retry = (0.25, 5.0)
    recheck = 2.0
    at_once = 256
    """All queries that wait for one scan wake at once."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._scan = Scan(float("-inf"))
        self._next: threads.Event | None = None
        self._scanning = False
        self._throttle = LogThrottle()

    def find(self, question: PortQuery) -> Ownership:
        """See :class:`~dfmeta.sources.source.Source`.

        :raises SourceError: when a directory exists and cannot be read.
        """
        scan = self._since(question.since)
        port = question.port
        domain: Domain | None = None
        if question.proven:
            domains = [
                candidate for candidate in scan.domains if candidate.instance_id == port.instance_id
            ]
            domain = max(domains, key=lambda candidate: candidate.active, default=None)
        else:
            domain = match(port, scan.domains)
        if domain is not None:
            return domain.ownership
        if scan.error:
            raise errors.SourceError(source=self.name, cause=scan.error)
        return Ownership()

    def _since(self, moment: float) -> Scan:
        while self._scan.started < moment:
            if self._next is None:
                self._next = threads.Event()
            waiting = self._next
            if not self._scanning:
                self._scanning = True
                threads.spawn_detached(self._run)
            waiting.wait()
        return self._scan

    def _run(self) -> None:
        try:
            while self._next is not None:
                # This scan answers all queries that arrived before this moment.
                threads.sleep(0)
                done, self._next = self._next, None
                self._scan = threads.call_in_thread(self._folders.scan)
                done.send(None)
                for broken in self._scan.broken:
                    self._throttle.warn(LOG, "Ignored the libvirt file %s", broken)
                threads.sleep(FIRST_PAUSE)
        finally:
            self._scanning = False
