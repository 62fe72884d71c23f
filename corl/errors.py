"""What can go wrong, as a tree.

    CorlError
    +-- CohortError            a cohort file, problem file or view is wrong
    +-- AddressError           a judge's address or key cannot be used
    +-- JudgeError             a call to a judge did not give what was asked
        +-- JudgeUnavailable   no good answer before the deadline: unreachable, overloaded, still working
        +-- JudgeRefused       the judge said no, and would again: any 4xx but 408 and 429, or a lasting 5xx
        |   +-- JudgeDenied    401, 403: no key, or the wrong one
        |   +-- JudgeConflict  409: a newer trainer, newer weights, or the same idempotency key with another body
        |   +-- JobUnknown     404 for a job: the judge never had it
        |   +-- JobGone        410 for a job: its result is past its retention
        +-- JudgeInvalid       an answer that a judge must not send: not JSON, wrong lengths, NaN, run not echoed
        |   +-- JudgeStale     weights older than ones this judge has already answered with
        +-- JobFailed          the job ended without a result
            +-- JobCancelled   because its asker withdrew it

None of these is ever a reward: a failed call has no verdict. No text of theirs holds the key or a URL's password.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from corl.faults import Fault

if TYPE_CHECKING:
    from corl.wire import ErrorBody, WeightsTag

__all__ = [
    "AddressError",
    "CohortError",
    "CorlError",
    "JobCancelled",
    "JobFailed",
    "JobGone",
    "JobUnknown",
    "JudgeConflict",
    "JudgeDenied",
    "JudgeError",
    "JudgeInvalid",
    "JudgeRefused",
    "JudgeStale",
    "JudgeUnavailable",
]


class CorlError(Exception):
    """Base of all errors that this package raises for what its user, a file or a service got wrong."""


class CohortError(CorlError, ValueError):
    """A cohort file, a problem file, a view or a model folder is wrong: file, line or field, value and remedy.

    Attributes:
        faults: all that was found wrong; the text has one line for each.
    """

    def __init__(self, faults: str | Fault | Iterable[Fault]) -> None:
        if isinstance(faults, str):
            faults = Fault(faults)
        self.faults: Sequence[Fault] = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__("\n".join(map(str, self.faults)))


class AddressError(CorlError, ValueError):
    """No http(s) address with a host, or a key that cannot be in a header. The key is not in the text."""


class JudgeError(CorlError):
    """A call to a judge failed.

    Attributes:
        url: the judge's address, without credentials.
        route: method and path, e.g. `POST /v1/scores`.
        problem: the judge's own RFC 9457 body, where it sent one.
    """

    def __init__(self, message: str, *, url: str, route: str, problem: ErrorBody | None = None) -> None:
        super().__init__(f"judge {url}: {route}: {message}")
        self.url = url
        self.route = route
        self.problem = problem


class JudgeUnavailable(JudgeError):
    """No good answer before the deadline; the same call may succeed later.

    Attributes:
        deadline_s: seconds that the call was allowed, retries included.
        attempts: requests that were sent.
        last: what the last attempt came to, in words.
        status: HTTP status of the last answer; None where there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str,
        route: str,
        deadline_s: float,
        attempts: int,
        last: str,
        status: int | None = None,
        problem: ErrorBody | None = None,
    ) -> None:
        super().__init__(message, url=url, route=route, problem=problem)
        self.deadline_s = deadline_s
        self.attempts = attempts
        self.last = last
        self.status = status


class JudgeRefused(JudgeError):
    """The judge answered that it will not do this; sending it again would not help.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, *, url: str, route: str, status: int, problem: ErrorBody | None = None) -> None:
        super().__init__(message, url=url, route=route, problem=problem)
        self.status = status


class JudgeDenied(JudgeRefused):
    """401 or 403: the key is missing or wrong."""


class JudgeConflict(JudgeRefused):
    """409: fenced off by a newer trainer, older than the weights, or an idempotency key used for another body."""


class JobUnknown(JudgeRefused):
    """404: the judge has no such job. Submit it again; a job whose store was lost ends like this too."""


class JobGone(JudgeRefused):
    """410: the job is older than the retention of results. Submit it again."""


class JudgeInvalid(JudgeError):
    """The judge answered 2xx with something that it must not send. Nothing of the answer was used."""


class JudgeStale(JudgeInvalid):
    """The judge answered with weights older than ones it had answered with before the call.

    Attributes:
        got: the weights of the answer.
        seen: the newest weights seen before.
    """

    def __init__(self, message: str, *, url: str, route: str, got: WeightsTag, seen: WeightsTag) -> None:
        super().__init__(message, url=url, route=route)
        self.got = got
        self.seen = seen


class JobFailed(JudgeError):
    """A job ended without a result; `problem` is its error where the judge gave one.

    Attributes:
        job_id: the job.
    """

    def __init__(self, message: str, *, url: str, route: str, job_id: str, problem: ErrorBody | None = None) -> None:
        super().__init__(message, url=url, route=route, problem=problem)
        self.job_id = job_id


class JobCancelled(JobFailed):
    """The job was cancelled before it ended."""
