"""A small OpenAI-compatible endpoint over real HTTP, with knobs for faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, Any] | bytes, dict[str, str]]


@dataclass
class Stub:
    """`faults` are given before the answers, one each; `most_choices` caps `n` as some endpoints do."""

    url: str = ""
    models: list[str] | None = field(default_factory=lambda: ["org/remote"])
    answers: tuple[str, ...] = ("4", "4", "4", "5")
    key: str | None = None
    most_choices: int | None = None
    faults: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    drops: int = 0

    def reply(self, method: str, path: str, body: dict[str, Any] | None, key: str) -> Reply:
        if self.key is not None and key != f"Bearer {self.key}":
            return 401, {"error": {"message": "wrong key"}}, {}
        if path == "/v1/models":
            if self.models is None:
                return 404, {}, {}
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}, {}
        assert (method, path) == ("POST", "/v1/chat/completions")
        assert body is not None
        self.requests.append(body)
        if self.faults:
            return self.faults.pop(0)
        n = min(body.get("n", 1), self.most_choices or body.get("n", 1))
        start = len(self.requests) - 1 if self.most_choices else 0
        choices = [
            {
                "index": i,
                "message": {
                    "role": "assistant",
                    "content": f"\\boxed{{{self.answers[(start + i) % len(self.answers)]}}}",
                },
                "finish_reason": "stop",
            }
            for i in range(n)
        ]
        usage = {"prompt_tokens": 11, "completion_tokens": 7 * n, "total_tokens": 11 + 7 * n}
        return 200, {"object": "chat.completion", "choices": choices, "usage": usage}, {}


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


def _handler(stub: Stub) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            if body is not None and stub.drops:
                stub.drops -= 1
                self.close_connection = True
                return
            status, answer, headers = stub.reply(self.command, self.path, body, self.headers.get("authorization", ""))
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", "content-length": str(len(raw)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
