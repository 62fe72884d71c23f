"""Limits of a request: size of its body, items, samples, completions, and how many are held open at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corl.wire import Limits, RolloutsRequest, ScoresRequest
from corl_judge.errors import Invalid, TooBusy, TooLarge
from corl_judge.settings import Settings

__all__ = ["BodyLimit", "Open", "check_rollouts", "check_scores", "limits"]


class BodyLimit:
    """Middleware: a body is refused by its announced length, or as soon as more than that has arrived."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max:
            raise self._too_large(int(announced))
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max:
                raise self._too_large(received)
            return message

        await self.app(scope, counted, send)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(f"the body has {size} bytes or more, this judge takes {self._max}: send fewer items a request")


class Open:
    """How many requests of one kind are held open; beyond `limit` a new one is a 429."""

    def __init__(self, kind: str, limit: int) -> None:
        self._kind = kind
        self._limit = limit
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def admitted(self) -> Iterator[None]:
        if self._count >= self._limit:
            raise TooBusy(f"{self._count} {self._kind} requests are open here, the limit; try again", retry_after=1.0)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


def limits(settings: Settings, max_model_len: int) -> Limits:
    return Limits(
        max_model_len=max_model_len,
        max_items=settings.max_items,
        max_completions=settings.max_completions,
        max_samples=settings.max_samples,
        max_body_bytes=settings.max_body_bytes,
    )


def check_rollouts(request: RolloutsRequest, settings: Settings) -> None:
    """Raises Invalid naming the field, its value and the limit."""
    _at_most("problems", len(request.problems), settings.max_items)
    _at_most("n", request.n, settings.max_samples)
    _at_most("deadline_s", request.deadline_s, settings.deadline_s)


def check_scores(request: ScoresRequest, settings: Settings) -> None:
    """Raises Invalid naming the field, its value and the limit."""
    _at_most("items", len(request.items), settings.max_items)
    _at_most("policy.samples", request.policy.samples, settings.max_samples)
    _at_most("items.completions", sum(len(item.completions) for item in request.items), settings.max_completions)
    _at_most("policy.wait_s", request.policy.wait_s, settings.deadline_s)
    if request.sampling is not None and request.sampling.temperature == 0.0 and request.policy.samples != 1:
        raise Invalid.field(
            "sampling.temperature",
            f"0 is greedy, so {request.policy.samples} samples would be the same one: set policy.samples to 1",
            0.0,
        )


def _at_most(field: str, value: float, most: float) -> None:
    if value > most:
        raise Invalid.field(field, f"is {value}, this judge takes at most {most} in one request", value)
