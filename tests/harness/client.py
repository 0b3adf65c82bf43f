"""Many HTTP requests from inside a guest, a new connection for each; results as JSON on stdout.

A program that uses only the standard library; :meth:`tests.harness.guest.Guest.http_many` starts
it. After SIGTERM it starts no further requests, from an empty line on stdout on. Each answer with
status 200 is a dot on stderr at once.
"""

import argparse
import base64
import http.client
import json
import os
import signal
import sys
import threading
import time
from typing import Any


def fetch(options: argparse.Namespace) -> dict[str, Any]:
    """Send one request; in the result, ``error`` has the error, ``status`` is 0 without answer."""
    result: dict[str, Any] = {"status": 0, "body": "", "error": "", "connect": 0.0, "port": 0}
    source = (options.source, 0) if options.source else None
    start = time.monotonic()
    connection = http.client.HTTPConnection(
        options.host, options.port, timeout=options.timeout, source_address=source
    )
    try:
        connection.connect()
        result["connect"] = time.monotonic() - start
        result["port"] = connection.sock.getsockname()[1]
        connection.request(options.method, options.path, headers=dict(options.header))
        answer = connection.getresponse()
        body = answer.read()
        result["status"] = answer.status
        result["body"] = base64.b64encode(body).decode()
    except (OSError, http.client.HTTPException) as error:
        result["error"] = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    result["seconds"] = time.monotonic() - start
    return result


def main() -> None:
    """Run ``--count`` requests, ``--concurrency`` at a time, and no more often than asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=80)
    parser.add_argument("--path", default="/")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--header", nargs=2, action="append", default=[])
    parser.add_argument("--source", default="")
    parser.add_argument("--timeout", type=float, default=10)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--interval", type=float, default=0)
    options = parser.parse_args()

    results: list[dict[str, Any]] = []
    pending = iter(range(options.count))
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    sys.stdout.write("\n")
    sys.stdout.flush()
    lock = threading.Lock()
    workers = min(options.concurrency, options.count)
    together = threading.Barrier(workers)

    def work() -> None:
        together.wait()
        due = 0.0
        while True:
            if options.interval:
                enough.wait(due - time.monotonic())
                due = max(due, time.monotonic()) + options.interval
            with lock:
                if enough.is_set() or next(pending, None) is None:
                    return
            result = fetch(options)
            if result["status"] == http.HTTPStatus.OK:
                os.write(2, b".")
            with lock:
                results.append(result)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
