"""How the error of a dead item is written: JSON with a kind and a message."""

from __future__ import annotations

import json

__all__ = ["decode_error", "encode_error"]


def encode_error(kind: str, error: BaseException) -> bytes:
    """`kind` is one of `wire.Failure`'s."""
    return json.dumps({"kind": kind, "message": str(error) or type(error).__name__}).encode("utf-8")


def decode_error(error: bytes) -> tuple[str, str]:
    """Kind and message of an error in the dead stream, whoever wrote it."""
    try:
        fields = json.loads(error)
        return str(fields["kind"]), str(fields["message"])
    except (ValueError, KeyError, TypeError):
        return "internal", error.decode("utf-8", "replace")
