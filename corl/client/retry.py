"""When to try again, and how long to wait first."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["RETRIED_STATUSES", "Backoff", "Deadline", "retry_after"]

RETRIED_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
"""Answers that say "not now". No other 4xx is sent again: it would be refused again."""


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff with full jitter: before retry k a wait drawn from 0 .. min(cap_s, base_s * 2^k).

    Full jitter spreads callers that failed together (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    `doubts` bounds the retries of what is probably no passing trouble: a 500, or weights older than ones seen before.
    """

    base_s: float = 0.25
    cap_s: float = 15.0
    doubts: int = 3

    def pause(self, failures: int, remaining: float) -> float | None:
        """Seconds to wait after that many failures in a row; None when too little time remains for another attempt."""
        if remaining < self.base_s:
            return None
        return random.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(failures, 60), remaining))


class Deadline:
    """A point in time by which a call ends, whatever happens; monotonic."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"deadline_s {seconds!r}: expected a number of seconds > 0")
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        return self._end - time.monotonic()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks to wait (RFC 9110, section 10.2.3: seconds or a date); None if absent or bad.

    A date is read against the answer's own `Date`, so that a wrong clock on either side does no harm.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    when = _date(value)
    if when is None:
        return None
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (when - now).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
