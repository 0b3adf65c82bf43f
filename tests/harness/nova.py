"""A Nova metadata API that verifies signatures, records every request and fails on demand."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.harness import netns
from tests.harness.certificates import Pair
from tests.harness.closing import Closing
from tests.harness.nova_tree import Instance
from tests.harness.poll import wait_for
from tests.harness.program import script

SECRET = "the secret of the tests"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A request as it arrived; ``status`` is the status of the answer (0: no answer)."""

    time: float
    method: str
    path: str
    version: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    client: tuple[str, int]
    status: int

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


class RecordingNova(Closing):
    """The API as a process of its own in a namespace; a context manager that ends it."""

    def __init__(
        self,
        namespace: netns.Namespace,
        *,
        host: str = "127.0.0.1",
        port: int = 8775,
        secret: str = SECRET,
        direct: str = "",
        certificate: Pair | None = None,
        client_authority: Path | None = None,
    ) -> None:
        """Start the API and wait until it listens.

        :param direct: an instance id: do not identify callers, and answer all with this instance.
        :param certificate: the server's certificate, for TLS.
        :param client_authority: require a certificate of each client, signed by this authority.
        """
        self.host = host
        self.port = port
        self.secret = secret
        self._stack = contextlib.ExitStack()
        folder = netns.temporary_folder("nova")
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._errors = folder / "stderr"
        control = folder / "control"
        arguments = ["--host", host, "--port", str(port), "--control", str(control)]
        arguments += ["--direct", direct]
        if certificate is not None:
            arguments += [
                "--certificate",
                str(certificate.certificate),
                "--key",
                str(certificate.key),
            ]
        if client_authority is not None:
            arguments += ["--client-authority", str(client_authority)]
        try:
            with self._errors.open("wb") as errors, open(os.memfd_create("in"), "w+b") as stdin:
                stdin.write(secret.encode() + b"\n")
                stdin.seek(0)
                self._process = script(
                    "nova_server", *arguments, namespace=namespace, stdin=stdin, stderr=errors
                )
            self._stack.callback(netns.end, self._process)
            self._socket = self._stack.enter_context(socket.socket(socket.AF_UNIX))
            self._socket.settimeout(60)
            wait_for(lambda: self._connected(control), "the recording Nova to start")
            self._lines = self._stack.enter_context(self._socket.makefile("rw"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the API. Idempotent."""
        self._stack.close()

    # Instances

    def put(self, instance: Instance) -> Instance:
        """Add or replace an instance."""
        document = asdict(instance)
        raw = document.pop("user_data")
        user_data = None if raw is None else base64.b64encode(raw).decode()
        self._ask("put", instance=document, user_data=user_data)
        return instance

    def remove(self, instance_id: str) -> None:
        """Remove an instance; requests for it are answered with 404 from now on."""
        self._ask("remove", instance_id=instance_id)

    def signature(self, instance_id: str) -> str:
        """Return the valid X-Instance-ID-Signature of an instance."""
        return hmac.new(self.secret.encode(), instance_id.encode(), hashlib.sha256).hexdigest()

    def password(self, instance_id: str) -> bytes:
        """Return the password that the instance has posted."""
        return base64.b64decode(self._ask("password", instance_id=instance_id))

    # Recorded requests

    def requests(self) -> list[Recorded]:
        """Return all requests since the start or :meth:`clear`, in their order."""
        return [
            Recorded(
                **{
                    **entry,
                    "headers": tuple((key, value) for key, value in entry["headers"]),
                    "body": base64.b64decode(entry["body"]),
                    "client": tuple(entry["client"]),
                }
            )
            for entry in self._ask("requests")
        ]

    def received(self) -> int:
        """Return the number of requests since the start or :meth:`clear`."""
        return int(self._ask("status")["requests"])

    def accepted(self) -> int:
        """Return the number of connections accepted since the start or :meth:`clear`."""
        return int(self._ask("status")["accepted"])

    def clear(self) -> None:
        """Clear the recorded requests and the count of connections."""
        self._ask("clear")

    # Faults

    def fault(
        self,
        match: str = "",
        *,
        times: int = -1,
        delay: float = 0.0,
        held: bool = False,
        close: bool = False,
        status: int = 0,
        trickle: float = 0.0,
        cut: int = -1,
        raw: bytes = b"",
    ) -> None:
        """Fail requests from now on, as :class:`tests.harness.nova_server.Fault` describes.

        :param match: a regular expression, searched in "METHOD path".
        """
        self._ask(
            "fault",
            match=match,
            times=times,
            delay=delay,
            held=held,
            close=close,
            status=status,
            trickle=trickle,
            cut=cut,
            raw=base64.b64encode(raw).decode(),
        )

    def stall(self, times: int = 1) -> None:
        """Let the next TLS handshakes hang until :meth:`mend`."""
        self._ask("stall", times=times)

    def stalls(self) -> int:
        """Return the number of handshakes that will still hang."""
        return int(self._ask("status")["stalls"])

    def mend(self) -> None:
        """Remove all faults, and listen again."""
        self._ask("mend")

    def away(self) -> None:
        """Close the listener and all connections, so that new connections are refused."""
        self._ask("away")

    def back(self) -> None:
        """Listen again."""
        self._ask("back")

    def cut(self) -> None:
        """Close all open connections, including kept ones; the listener stays."""
        self._ask("cut")

    # Inside

    def _connected(self, control: Path) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"the recording Nova ended: {self._errors.read_text()}")
        try:
            self._socket.connect(str(control))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def _ask(self, op: str, **values: Any) -> Any:
        self._lines.write(json.dumps({"op": op, **values}) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"the recording Nova is gone: {self._errors.read_text()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the recording Nova: {answer['error']}")
        return answer["result"]
