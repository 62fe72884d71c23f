"""A real HTTP server that answers as it is told: late, wrongly, with half a body, or not at all.

    with ScriptedServer([reply(503), half({"a": 1}), reply(200, {"a": 1})]) as server:
        ... server.url, server.requests

Each request takes the next behaviour of the script; the last one stays. No behaviour sleeps: one that is late waits
until the caller hangs up or the server stops.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

__all__ = [
    "Behaviour",
    "Received",
    "ScriptedServer",
    "drip",
    "half",
    "hang",
    "hang_up",
    "raw",
    "reply",
    "reset",
    "stall",
]


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The connection that a behaviour writes to."""

    def __init__(self, connection: socket.socket, stopped: threading.Event) -> None:
        self.connection = connection
        self.stopped = stopped
        self.open = True

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def close(self) -> None:
        self.open = False

    def gone(self, timeout: float) -> bool:
        """Wait that long for the caller to hang up, or for the server to stop."""
        readable, _, _ = select.select([self.connection], [], [], timeout)
        return self.stopped.is_set() or bool(readable and not self.connection.recv(1, socket.MSG_PEEK))


Behaviour = Callable[[Peer, Received], None]


def _message(status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body) if length is None else length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def reply(status: int, body: Any = b"", **headers: str) -> Behaviour:
    """A whole answer; a body that is not bytes goes as JSON (NaN included). `retry_after=` becomes Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if not isinstance(body, bytes):
        named.setdefault("content-type", "application/problem+json" if status >= 400 else "application/json")
    return lambda peer, _: peer.send(_message(status, _encoded(body), named))


def raw(data: bytes) -> Behaviour:
    """These bytes, and then the connection ends."""

    def act(peer: Peer, _: Received) -> None:
        peer.send(data)
        peer.close()

    return act


def half(body: Any) -> Behaviour:
    """A 200 that announces the whole body, sends half of it and hangs up."""
    data = _encoded(body)
    return raw(_message(200, data[: len(data) // 2], {"content-type": "application/json"}, length=len(data)))


def hang_up(peer: Peer, _: Received) -> None:
    """No answer; the connection ends in order."""
    peer.close()


def reset(peer: Peer, _: Received) -> None:
    """No answer; the connection is reset."""
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def hang(peer: Peer, _: Received) -> None:
    """No answer for as long as the caller stays."""
    while not peer.gone(1.0):
        pass
    peer.close()


def stall(body: Any) -> Behaviour:
    """Half of the body, then silence for as long as the caller stays."""
    data = _encoded(body)

    def act(peer: Peer, received: Received) -> None:
        peer.send(_message(200, data[: len(data) // 2], {}, length=len(data)))
        hang(peer, received)

    return act


def drip(peer: Peer, _: Received) -> None:
    """An endless body, a few bytes at a time."""
    peer.send(_message(200, b"", {"content-type": "application/json"}, length=1 << 40))
    try:
        while not peer.gone(0.01):
            peer.send(b" ")
    except OSError:
        pass
    peer.close()


class ScriptedServer:
    """Listens on a free port of the loopback; a thread per connection. `behaviour` may also look at the request."""

    def __init__(self, script: Sequence[Behaviour]) -> None:
        self.script = list(script)
        self.requests: list[Received] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        peer = Peer(connection, self._stopped)
        with connection:
            while peer.open:
                try:
                    received = self._receive(peer)
                    if received is None:
                        return
                    with self._lock:
                        self.requests.append(received)
                        behaviour = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                    behaviour(peer, received)
                except OSError:
                    return

    def _receive(self, peer: Peer) -> Received | None:
        data = b""
        while b"\r\n\r\n" not in data:
            readable, _, _ = select.select([peer.connection], [], [], 0.1)
            if self._stopped.is_set():
                return None
            if not readable:
                continue
            chunk = peer.connection.recv(65536)
            if not chunk:
                return None
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += peer.connection.recv(1 << 20)
        url = urlsplit(target)
        return Received(method, url.path, parse_qs(url.query), headers, body)
