"""The work of a worker process after its setup; see :mod:`dfmeta.cmd.worker`."""

import itertools
import logging
import os
import socket
from collections.abc import Sequence

import dfmeta.conf
from dfmeta import metrics
from dfmeta.cmd import privileges, service
from dfmeta.conf import kinds, metadata
from dfmeta.http import server, sockets
from dfmeta.identity.registry import Claim
from dfmeta.identity.slots import ACCEPTED
from dfmeta.proxy import claims, recent, tokens
from dfmeta.proxy.application import Application, guest_server
from dfmeta.proxy.engines.workers import calls
from dfmeta.proxy.engines.workers.pipe import Function, Message, Pipe
from dfmeta.runtime import hub, threads
from dfmeta.wiring import backends
from dfmeta.wiring.logs import set_up_logging

LOG = logging.getLogger("dfmeta.worker")

SPARE = 256
"""Descriptors beyond those of guests' connections, for the backend and Python."""
REPORT = 0.5
"""Seconds between two reports to the daemon of connections and of addresses that have none."""
PUSH_TURNS = 10
"""Number of these reports after which the other counts are reported too. Counts that are not yet
reported are lost if the worker is killed."""
PORTS_AT_ONCE = 100
"""Maximum number of ports in one message; between two messages the daemon can do other work."""


class Serving:
    """The parts of a worker.

    :param listeners: descriptors of the listening sockets.
    :param pipe: descriptor of a socket to the daemon.
    :param rights: descriptor of another socket to the daemon, which binds the connections that it
        receives over it.
    :param parent: the daemon's process id.
    """

    def __init__(self, listeners: Sequence[int], pipe: int, rights: int, *, parent: int) -> None:
        self._listeners = [sockets.adopt(fd) for fd in listeners]
        self._pipe = Pipe(sockets.adopt(pipe))
        self._rights = threads.original("socket").socket(fileno=rights)
        self._parent = parent
        self._mirror = claims.Mirror(self._count, self._pipe.catch_up)
        self._use = calls.Use(lambda *report: self._pipe.send("use", *report))
        self._server: server.HttpServer[Claim] | None = None
        recent.RECENT.complete = False

    def run(self) -> int:
        """Serve until the daemon requests the stop or has ended; return the exit status."""
        hub.VITAL.on_failure = lambda: threads.spawn_detached(self._stop, service.GRACE)
        self._pipe.run(
            {
                "start": Function(self._start, dict),
                "guests": Function(self._mirror.learn, list),
                "ready": Function(lambda: None),
                "serve": Function(self._serve),
                "metrics": Function(metrics.samples),
                # Sent before the result. Messages keep their order, so the report arrives first.
                "recent": Function(self._report_recent),
                "rebind": Function(self._have_bound),
                "stop": Function(self._stop, float, waits=True),
            }
        )
        # Without the daemon there are no identities of guests.
        hub.VITAL.release()
        return 0 if hub.VITAL.alive else 1

    def _serve(self) -> None:
        if self._server is not None:
            self._server.start()

    def _have_bound(self) -> None:
        """Make the daemon bind the connections to the device, which has been created again."""
        descriptors = self._server.descriptors() if self._server is not None else []
        for first in range(0, len(descriptors), sockets.FDS_MAX):
            socket.send_fds(self._rights, [b"x"], descriptors[first : first + sockets.FDS_MAX])

    def _start(self, message: Message) -> None:
        conf = dfmeta.conf.thaw(message["options"])
        self._mirror.keys = metadata.keys_of(conf)
        set_up_logging(debug=conf.debug, use_json=conf.use_json)
        worker_limits = backends.worker_share(
            backends.make_limits(conf), conf.df_metadata.proxy_workers
        )
        application = Application(
            self._mirror,
            calls.RemoteStore(self._pipe, "store")
            if conf.df_metadata.backend == "store"
            else backends.with_subports(
                conf, backends.make_backend(conf), calls.remote_subports(self._pipe, "nova")
            ),
            backends.make_app_settings(conf),
            tokens=tokens.Tokens(bytes.fromhex(message["key"])),
            rates=calls.RemoteRates(backends.make_rates(conf), self._pipe),
            complaints=calls.RemoteComplaints(self._pipe, LOG),
            echo=calls.Echo(lambda: self._pipe.call("echo", timeout=None) is not None),
            attachments=calls.RemoteAttachments(self._pipe, quota=conf.attachments.quota)
            if conf.attachments.enabled
            else None,
        )
        # Everything that needs privileges is open.
        privileges.drop(
            kinds.account_of(conf.df_metadata.proxy_worker_user, kinds.WORKER_ACCOUNT),
            descriptors=2 * worker_limits.connections + SPARE,
        )
        if os.getppid() != self._parent:
            raise SystemExit(0)
        self._server = guest_server(
            self._listeners,
            self._mirror,
            application.answer,
            device=conf.df_metadata.metadata_interface,
            limits=worker_limits,
            hold_timeout=conf.df_metadata.hold_timeout,
        )
        hub.resume_collection()
        hub.watch()
        hub.VITAL.spawn("report of counts", self._push)

    def _stop(self, grace: float) -> None:
        try:
            if self._server is not None:
                self._server.stop(grace)
            self._pipe.send("samples", metrics.samples())
            self._report_recent()
            threads.sleep(0)
        finally:
            # Closing the pipe ends the process, also after a failure above.
            self._pipe.close()

    def _push(self) -> None:
        for turn in itertools.count(1):
            threads.sleep(REPORT)
            self._use.review()
            self._report_ports("accepted", ACCEPTED.take())
            if turn % PUSH_TURNS == 0:
                self._pipe.send("samples", metrics.samples())
                self._report_recent()

    def _report_recent(self) -> None:
        self._report_ports("recent", recent.RECENT.take())

    def _report_ports(self, function: str, ports: Sequence[object]) -> None:
        for first in range(0, len(ports), PORTS_AT_ONCE):
            self._pipe.send(function, ports[first : first + PORTS_AT_ONCE])

    def _count(self, claim: Claim, change: int) -> None:
        self._use.count((*claim.endpoint, claim.slot, claim.epoch), change)
