"""A Nova metadata API that verifies signatures, records every request and fails on demand.

It is HTTP/1.1 with kept connections, as cheroot's.
"""

import hashlib
import hmac
import re
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.harness import nova_tree
from tests.harness.certificates import Pair
from tests.harness.netns import Namespace
from tests.harness.nova_tree import Document, Instance
from tests.harness.other_store import Asked, Last, OtherStore, reply
from tests.harness.poll import DEADLINE

SECRET = "the secret of the tests"
_MAX_PASSWORD = 1020


@dataclass(kw_only=True)
class Recorded:
    """A request as it arrived; ``status`` is the status of the answer (0: no answer)."""

    method: str
    path: str
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int = 0

    def header(self, name: str) -> str | None:
        """Return the value of a header, or None.

        :raises AssertionError: the header arrived more than once.
        """
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        if len(values) > 1:
            raise AssertionError(f"{name} arrived {len(values)} times: {values}")
        return values[0] if values else None

    @property
    def instance_id(self) -> str | None:
        """Return the header X-Instance-ID."""
        return self.header("X-Instance-ID")


@dataclass(kw_only=True)
class _Fault:
    match: str = ""
    times: int = -1
    held: bool = False
    close: bool = False
    status: int = 0
    cut: int = -1
    raw: bytes = b""


class RecordingNova(OtherStore):
    """The API in a namespace; it listens from its beginning."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        host: str = "127.0.0.1",
        port: int = 8775,
        secret: str = SECRET,
        certificate: Pair | None = None,
        client_authority: Path | None = None,
    ) -> None:
        """Listen.

        :param certificate: the server's certificate, for TLS.
        :param client_authority: require a certificate of each client, signed by this authority.
        """
        super().__init__(
            self.say,
            tls=certificate,
            client_authority=client_authority,
            namespace=namespace,
            address=host,
            port=port,
        )
        self.secret = secret
        self.lock = threading.Lock()
        self.proceed = threading.Event()
        """Not set: what is held waits."""
        self._instances: dict[str, Instance] = {}
        self._passwords: dict[str, bytes] = {}
        self._faults: list[_Fault] = []
        self._requests: list[Recorded] = []
        self.start()

    def close(self) -> None:
        """End the API. Idempotent."""
        self.proceed.set()
        super().close()

    # Instances

    def put(self, instance: Instance) -> Instance:
        """Add or replace an instance."""
        self._instances[instance.instance_id] = instance
        return instance

    def signature(self, instance_id: str) -> str:
        """Return the valid X-Instance-ID-Signature of an instance."""
        return hmac.new(self.secret.encode(), instance_id.encode(), hashlib.sha256).hexdigest()

    def password(self, instance_id: str) -> bytes:
        """Return the password that the instance has posted."""
        return self._passwords.get(instance_id, b"")

    # Recorded requests

    def requests(self) -> list[Recorded]:
        """Return all requests since the start or :meth:`clear`, in their order."""
        return [replace(response) for response in self._requests]

    def received(self) -> int:
        """Return the number of requests since the start or :meth:`clear`."""
        return len(self._requests)

    def clear(self) -> None:
        """Clear the recorded requests."""
        with self.lock:
            self._requests.clear()
            self.asked.clear()

    # Faults

    def fault(self, match: str = "", **values: Any) -> None:
        """Fail requests from now on.

        :param match: a regular expression, searched in "METHOD path".
        :param times: the number of requests; -1: all.
        :param held: no answer before :meth:`mend`.
        :param close: no answer at all.
        :param status: this status instead of the answer.
        :param cut: only this number of bytes of the body.
        :param raw: these bytes instead of an answer, and the end of the connection.
        """
        fault = _Fault(match=match, **values)
        if fault.held:
            self.proceed.clear()
        with self.lock:
            self._faults.append(fault)

    def mend(self) -> None:
        """Remove all faults, and listen again."""
        with self.lock:
            self._faults.clear()
        self.proceed.set()
        self.back()

    def away(self) -> None:
        """Close the listener and all connections, so that new connections are refused."""
        self.stop()

    def back(self) -> None:
        """Listen again."""
        self.start()

    # For the server

    def record(self, request: Recorded) -> _Fault:
        """Record a request, and return its fault."""
        text = f"{request.method} {request.path}"
        with self.lock:
            self._requests.append(request)
            for fault in self._faults:
                if fault.times and re.search(fault.match, text):
                    fault.times -= 1
                    return fault
        return _Fault()

    def say(self, asked: Asked) -> bytes:
        """Record the request, apply a fault, verify the headers, and answer."""
        request = Recorded(
            method=asked.method,
            path=asked.target,
            version=asked.version,
            headers=asked.fields,
            body=asked.content,
        )
        fault = self.record(request)
        if fault.held:
            self.proceed.wait(DEADLINE)
        if fault.close or fault.raw:
            return Last(fault.raw)
        if fault.status:
            request.status, document = fault.status, Document(body=b"fault\n")
        else:
            request.status, document = self.find(request, asked.headers, asked.client)
        date = (f"Date: {formatdate(usegmt=True)}",)
        kind = document.content_type
        answer = reply(document.body, status=request.status, kind=kind, headers=date)
        head = answer[: len(answer) - len(document.body)]
        if fault.cut >= 0:
            return Last(head + document.body[: fault.cut])
        return head if asked.method == "HEAD" else answer

    def find(
        self, request: Recorded, headers: Mapping[str, str], client: str
    ) -> tuple[int, Document]:
        """Return the status and the document of a request, as Nova does."""
        if not request.path.startswith("/") or request.path.startswith("//"):
            return _refused(400)
        path = urllib.parse.unquote(request.path.partition("?")[0]).rstrip("/")
        if not path:
            # Nova identifies no caller for this path.
            return 200, Document(body="\n".join([*nova_tree.EC2_VERSIONS, "latest"]).encode())
        instance_id, project_id, signature = (
            headers.get(name)
            for name in ("x-instance-id", "x-tenant-id", "x-instance-id-signature")
        )
        if instance_id is None or project_id is None or signature is None:
            return _refused(400)
        if self.signature(instance_id).encode() != signature.encode("latin-1"):
            return _refused(403)
        instance = self._instances.get(instance_id)
        if instance is None or instance.project_id != project_id:
            return _refused(404)
        if re.fullmatch(r"/openstack/[^/]+/password", path):
            return self._password(request, instance_id, has_length="content-length" in headers)
        document = nova_tree.find(instance, path, headers.get("x-forwarded-for") or client)
        return _refused(404) if document is None else (200, document)

    def _password(
        self, request: Recorded, instance_id: str, *, has_length: bool
    ) -> tuple[int, Document]:
        with self.lock:
            password = self._passwords.get(instance_id, b"")
            if request.method == "GET":
                return 200, Document(body=password)
            if request.method != "POST" or len(request.body) > _MAX_PASSWORD:
                return _refused(400)
            if not has_length:
                return _refused(500)
            if password:
                return _refused(409)
            self._passwords[instance_id] = request.body
        return 200, Document(body=b"")


def _refused(status: int) -> tuple[int, Document]:
    return status, Document(body=f"{status}\n".encode())
