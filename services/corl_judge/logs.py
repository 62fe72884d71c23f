"""Structured logs: one JSON object or one console line an event, with the request's id, run, member and step.

Context travels in a context variable, so that whatever a request awaits logs under its id. Secrets never reach a
record: keys and URLs are SecretStr, errors of Redis hide the password, and the filter here blanks the key.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

__all__ = ["bound", "configure", "context"]

Format = Literal["json", "console"]

_context: ContextVar[dict[str, Any]] = ContextVar("corl_judge_log_context", default={})  # noqa: B039 - never mutated


def context() -> dict[str, Any]:
    return dict(_context.get())


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every record logged inside; None leaves a field out."""
    token = _context.set({**_context.get(), **{k: v for k, v in fields.items() if v is not None}})
    try:
        yield
    finally:
        _context.reset(token)


class ContextFilter(logging.Filter):
    """Puts the context on the record and blanks secrets in its text."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__()
        self._secrets = [secret for secret in secrets if len(secret) >= 4]

    def filter(self, record: logging.LogRecord) -> bool:
        record.corl_context = context()
        text = record.getMessage()
        for secret in self._secrets:
            text = text.replace(secret, "***")
        record.msg, record.args = text, None
        return True


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.message if hasattr(record, "message") else record.getMessage(),
            **getattr(record, "corl_context", {}),
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)


class ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={v}" for k, v in getattr(record, "corl_context", {}).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname[0]} {record.getMessage()}"
        line = f"{line}  [{fields}]" if fields else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(format: Format, level: str, secrets: Sequence[str] = (), **fields: Any) -> None:
    """Send every logger of the process to stderr. `fields` (member, replica) go on every record."""
    _context.set({**_context.get(), **{k: v for k, v in fields.items() if v is not None}})
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else ConsoleFormatter())
    handler.addFilter(ContextFilter(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # the request log below has the id, the run and the step
    logging.getLogger("httpx").setLevel(logging.WARNING)
