"""The API key: `Authorization: Bearer KEY`, or HTTP Basic with the key as the password.

Basic is for clients that can only carry a URL (http://any:KEY@host). Sources: RFC 6750, RFC 7617.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from corl_judge import errors

__all__ = ["PROBES", "RequireKey", "presented_key"]

PROBES = frozenset({"/livez", "/readyz", "/startupz"})


class RequireKey:
    """Middleware: every route but the three probes needs the key. Without a configured key everything is open."""

    def __init__(self, app: ASGIApp, key: SecretStr | None) -> None:
        self.app = app
        self._key = None if key is None else key.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._key is None or scope["path"] in PROBES:
            return await self.app(scope, receive, send)
        presented = presented_key(dict(scope["headers"]).get(b"authorization", b""))
        if presented is not None and hmac.compare_digest(presented, self._key):
            return await self.app(scope, receive, send)
        detail = "send `Authorization: Bearer KEY`, or HTTP Basic with the key as the password"
        await errors.send(errors.Unauthorized(detail), scope, receive, send)


def presented_key(header: bytes) -> bytes | None:
    """The key that an Authorization header carries, or None."""
    scheme, _, credentials = header.strip().partition(b" ")
    credentials = credentials.strip()
    if scheme.lower() == b"bearer" and credentials:
        return credentials
    if scheme.lower() != b"basic":
        return None
    try:
        _, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None
