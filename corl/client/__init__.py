"""Clients of a judge: `JudgeClient` for threads, `AsyncJudgeClient` for asyncio. They differ in nothing else.

Deadlines
    Every call takes `deadline_s` (else the client's `timeout`), which covers all attempts and the waits between them.
    A call ends with its result or an error of `corl.errors`, never with silence, and never with half an answer.
Retries
    Transport faults (refused, reset, half a body), 408, 429 and 502-504 are tried again with full jitter until the
    deadline, not before `Retry-After` says. Another 5xx is tried three times more, another 4xx never. All calls may be
    repeated: the judge knows the same work by its content, and jobs by their idempotency key, which `submit` keeps over
    its attempts.
What is not believed
    An answer that does not fit its request: other ids, numbers of completions, log-probabilities or rewards; NaN; run
    or step not echoed; prompt tokens changed; not JSON; too long. It is a JudgeInvalid, and nothing of it is used.
Weights do not go back
    A judge's (incarnation, version) may not fall below what the same client has seen from it before it sent the request
    (equal digests are the same weights). Rollouts with older weights are a JudgeStale at once. The weights beside
    *scores* are those of whichever replica answered, and one of several may still be loading what another has: such an
    answer is asked for again three times and then a JudgeStale. What `weights` says is wanted may fall only if a
    replica reports that it could not load it. A job's rollouts are held against what was seen when it was submitted.
"""

from corl.client.aio import AsyncJudgeClient
from corl.client.retry import Backoff
from corl.client.sync import JudgeClient

__all__ = ["AsyncJudgeClient", "Backoff", "JudgeClient"]
