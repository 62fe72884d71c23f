"""What the sync and the async client share about httpx: address, key, time limits, and what its errors mean."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Final

import httpx

from corl import __version__
from corl.client.exchange import Answer, Attempt, Fault, Judge
from corl.errors import AddressError

__all__ = ["Body", "Connection", "fault"]

CONNECT_S: Final = 10.0


@dataclass(frozen=True)
class Connection:
    """Where and as whom a client connects."""

    judge: Judge
    headers: dict[str, str]
    auth: httpx.BasicAuth | None
    verify: ssl.SSLContext | bool
    max_response_bytes: int

    @classmethod
    def to(cls, url: str, api_key: str | None, max_response_bytes: int) -> Connection:
        """Read an address like `http://host:8000` or `https://:KEY@host/path`; the key is sent as a bearer token.

        Raises:
            AddressError: no http(s) address with a host, or a key that cannot be in a header.
        """
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise AddressError(f"judge's address: {error}; expected one like http://127.0.0.1:8000") from None
        bare = parsed.copy_with(username=None, password=None)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise AddressError(f"judge's address {str(bare)!r}: expected one like http://127.0.0.1:8000")
        if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
            raise AddressError("api_key: expected printable ASCII characters; is there a line break at its end?")
        headers = {"accept": "application/json", "user-agent": f"corl/{__version__}"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        basic = api_key is None and bool(parsed.username or parsed.password)
        return cls(
            judge=Judge(str(bare).rstrip("/"), tuple(filter(None, {api_key, parsed.password}))),
            headers=headers,
            auth=httpx.BasicAuth(parsed.username, parsed.password) if basic else None,
            # Without TLS, and redirects are not followed: no need to load the system's certificates, which takes longer
            # than a call. A context without any trusts nobody.
            verify=True if parsed.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            max_response_bytes=max_response_bytes,
        )

    def request(self, client: httpx.Client | httpx.AsyncClient, attempt: Attempt) -> httpx.Request:
        sent = attempt.request
        headers = {**self.headers, **sent.headers}
        if sent.body is not None:
            headers["content-type"] = "application/json"
        return client.build_request(
            sent.method,
            self.judge.url + sent.path,
            params=dict(sent.params) or None,
            content=sent.body,
            headers=headers,
            timeout=httpx.Timeout(attempt.timeout_s, connect=min(CONNECT_S, attempt.timeout_s)),
        )


class Body:
    """Collects an answer's bytes within a size and a time."""

    def __init__(self, response: httpx.Response, end: float, limit: int) -> None:
        self._response = response
        self._end = end
        self._limit = limit
        self._bytes = bytearray()
        # What is left, not the whole time again, is how long the first byte of the body may take.
        response.request.extensions["timeout"]["read"] = max(end - time.monotonic(), 0.001)

    def add(self, chunk: bytes) -> Fault | None:
        self._bytes += chunk
        if len(self._bytes) > self._limit:
            return Fault(f"answered {self._response.status_code} with more than {self._limit} bytes", "invalid")
        if time.monotonic() > self._end:
            return Fault(f"answered {self._response.status_code}, but its body did not end in time")
        return None

    def answer(self) -> Answer:
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return Answer(self._response.status_code, headers, bytes(self._bytes))


def fault(error: Exception, attempt: Attempt) -> Fault:
    """What an error of httpx says about trying again."""
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        kind = type(error).__name__
        return Fault(f"no answer within {attempt.timeout_s:.1f} s ({kind})", error=error)
    if isinstance(error, httpx.DecodingError):
        return Fault(f"answered with a body that cannot be decoded ({error})", "invalid", error)
    root: BaseException = error
    while (deeper := root.__cause__ or root.__context__) is not None and str(deeper):
        root = deeper
    kinds = dict.fromkeys((type(error).__name__, type(root).__name__))
    text = f"{' from '.join(kinds)}: {root}" if str(root) else type(error).__name__
    lasting = isinstance(root, ssl.SSLCertVerificationError)
    return Fault(text, "lasting" if lasting else "passing", error)
