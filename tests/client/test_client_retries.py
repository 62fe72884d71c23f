"""What is sent again, what is not, and when a call gives up."""

from __future__ import annotations

import ssl
from email.utils import format_datetime

import httpx
import pytest

from corl.client import Backoff
from corl.client.exchange import Attempt, Judge, Request, exchange
from corl.client.retry import Deadline, retry_after
from corl.client.transport import fault
from corl.errors import (
    CorlError,
    JobGone,
    JobUnknown,
    JudgeConflict,
    JudgeDenied,
    JudgeInvalid,
    JudgeRefused,
    JudgeUnavailable,
)
from tests.client import http_script as http
from tests.client.conftest import QUICK, Face
from tests.client.http_script import ScriptedServer, reply
from tests.client.samples import ROLLOUTS, SCORES, job, model, rollouts, scores

PROBLEM = {"type": "urn:corl:loading", "title": "Loading weights", "status": 503, "detail": "version 4 is being loaded"}


@pytest.mark.parametrize(
    "fault",
    [
        http.reset,
        http.hang_up,
        http.half(scores()),
        http.raw(b"not http at all\r\n\r\n"),
        *(reply(status, PROBLEM) for status in (408, 429, 502, 503, 504)),
    ],
    ids=["reset", "hang up", "half a body", "not http", "408", "429", "502", "503", "504"],
)
def test_a_passing_fault_is_retried(client: Face, fault: http.Behaviour) -> None:
    with ScriptedServer([fault, fault, reply(200, scores())]) as server:
        response = client(server.url).scores(SCORES)
        assert [item.status for item in response.items] == ["scored", "unlabeled"]
        assert len(server.requests) == 3
        assert len({request.body for request in server.requests}) == 1


@pytest.mark.parametrize("status", [400, 404, 405, 413, 422])
def test_another_4xx_is_never_retried(client: Face, status: int) -> None:
    body = {"title": "No", "status": status, "errors": [{"field": "items.0.prompt", "message": "too long"}]}
    with ScriptedServer([reply(status, body)]) as server:
        with pytest.raises(JudgeRefused, match=rf"POST /v1/scores: {status} .*items\.0\.prompt: too long") as caught:
            client(server.url).scores(SCORES)
        assert caught.value.status == status
        assert caught.value.problem is not None
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind"), [(401, JudgeDenied), (403, JudgeDenied), (409, JudgeConflict), (404, JudgeRefused)]
)
def test_refusals_have_kinds(client: Face, status: int, kind: type[JudgeRefused]) -> None:
    with ScriptedServer([reply(status, b"no")]) as server, pytest.raises(JudgeRefused) as caught:
        client(server.url).scores(SCORES)
    assert type(caught.value) is kind


@pytest.mark.parametrize(("status", "kind"), [(404, JobUnknown), (410, JobGone)])
def test_a_job_may_be_unknown_or_gone(client: Face, status: int, kind: type[JudgeRefused]) -> None:
    with ScriptedServer([reply(status, {"title": "No job", "status": status})]) as server:
        for call in ("job", "result", "cancel"):
            with pytest.raises(kind):
                getattr(client(server.url), call)("j1")


def test_an_internal_error_is_retried_a_few_times_only(client: Face) -> None:
    with ScriptedServer([reply(500, b"oops")]) as server:
        with pytest.raises(JudgeRefused, match="500 Internal Server Error: oops"):
            client(server.url, backoff=Backoff(0.01, 0.01, doubts=2)).scores(SCORES)
        assert len(server.requests) == 3


def test_redirects_are_not_followed(client: Face) -> None:
    with ScriptedServer([reply(307, b"", location="http://127.0.0.1:1/")]) as server:
        with pytest.raises(JudgeRefused, match="redirects are not followed"):
            client(server.url).scores(SCORES)
        assert len(server.requests) == 1


@pytest.mark.parametrize("behaviour", [http.hang, http.stall(scores()), http.drip], ids=["hang", "stall", "drip"])
def test_a_late_answer_ends_at_the_deadline(client: Face, behaviour: http.Behaviour) -> None:
    with ScriptedServer([behaviour]) as server:
        with pytest.raises(JudgeUnavailable, match=r"deadline of 0\.3 s") as caught:
            client(server.url).scores(SCORES, deadline_s=0.3)
        assert caught.value.deadline_s == 0.3
        assert caught.value.attempts == 1


def test_the_last_answer_is_told_when_the_deadline_ends(client: Face) -> None:
    with ScriptedServer([reply(503, PROBLEM)]) as server, pytest.raises(JudgeUnavailable) as caught:
        client(server.url, timeout=1.5).scores(SCORES)
    error = caught.value
    assert error.status == 503
    assert error.problem is not None
    assert error.problem.type == "urn:corl:loading"
    assert error.attempts > 1
    assert f"judge {server.url}: POST /v1/scores: " in str(error)
    assert "503 Service Unavailable: version 4 is being loaded" in str(error)


def test_nobody_listens(client: Face) -> None:
    with ScriptedServer([http.hang]) as server:
        url = server.url
    with pytest.raises(JudgeUnavailable, match="ConnectError from ConnectionRefusedError: ") as caught:
        client(url, timeout=0.2).scores(SCORES)
    assert caught.value.status is None
    assert caught.value.attempts > 1


def test_retry_after_is_honoured(client: Face) -> None:
    with ScriptedServer([reply(429, PROBLEM, retry_after="0"), reply(200, scores())]) as server:
        client(server.url).scores(SCORES)
    with ScriptedServer([reply(429, PROBLEM, retry_after="3600")]) as server:
        with pytest.raises(JudgeUnavailable, match="come back in 3600 s"):
            client(server.url).scores(SCORES)
        assert len(server.requests) == 1


def test_retry_after_in_both_forms() -> None:
    assert retry_after({"retry-after": "7"}) == 7.0
    dates = {"date": "Wed, 21 Oct 2015 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}
    assert retry_after(dates) == 30.0
    assert retry_after({**dates, "retry-after": "Wed, 21 Oct 2015 07:00:00 GMT"}) == 0.0
    for bad in ("", "-1", "soon", "1.5", "١", "Wed, 99 Oct 2015 07:28:30 GMT"):
        assert retry_after({"retry-after": bad}) is None


def test_retry_after_as_a_date_without_the_servers_clock() -> None:
    from datetime import UTC, datetime, timedelta

    wait = retry_after({"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)})
    assert wait is not None
    assert 3500 < wait <= 3600


def test_backoff_has_full_jitter_within_growing_bounds() -> None:
    backoff = Backoff(base_s=1.0, cap_s=8.0)
    for failures, bound in ((0, 1.0), (1, 2.0), (3, 8.0), (2000, 8.0)):
        pauses = [backoff.pause(failures, 100.0) for _ in range(400)]
        assert all(pause is not None and 0.0 <= pause <= bound for pause in pauses)
        assert min(p for p in pauses if p is not None) < 0.2 * bound
        assert max(p for p in pauses if p is not None) > 0.8 * bound
    assert all((backoff.pause(9, 1.5) or 0.0) <= 1.5 for _ in range(100))
    assert backoff.pause(0, 0.5) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_is_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="deadline_s"):
        Deadline(seconds)


def test_the_key_is_sent_and_never_told(client: Face) -> None:
    with ScriptedServer(
        [reply(401, {"title": "Wrong key", "status": 401, "detail": "Bearer s3cret is not it"})]
    ) as server:
        with pytest.raises(JudgeDenied) as caught:
            client(server.url, "s3cret").scores(SCORES)
        assert server.requests[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(caught.value)


def test_a_key_in_the_address_is_sent_as_basic_and_never_told(client: Face) -> None:
    with ScriptedServer([reply(401, b"no s3cret")]) as server:
        with pytest.raises(JudgeDenied) as caught:
            client(server.url.replace("//", "//:s3cret@"), None).scores(SCORES)
        assert server.requests[0].headers["authorization"] == "Basic OnMzY3JldA=="
    assert "s3cret" not in str(caught.value)
    assert caught.value.url == server.url


def test_a_path_in_the_address_is_kept(client: Face) -> None:
    with ScriptedServer([reply(200, scores())]) as server:
        client(server.url + "/judges/b/").scores(SCORES)
        assert server.requests[0].path == "/judges/b/v1/scores"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host/?a=1", "http://host:x"])
def test_a_bad_address_is_refused(client: Face, url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        client(url)


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
def test_a_bad_key_is_refused_and_not_told(client: Face, key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        client("http://127.0.0.1:1", key)
    assert not key or key not in str(caught.value)


def test_too_long_an_answer_is_not_read(client: Face) -> None:
    with ScriptedServer([http.drip]) as server:
        with pytest.raises(JudgeInvalid, match="more than 100 bytes"):
            client(server.url, max_response_bytes=100).scores(SCORES)
        assert len(server.requests) == 1


def test_loopback_is_not_called_through_a_proxy(client: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with ScriptedServer([reply(200, scores())]) as server:
        assert client(server.url).scores(SCORES).member == "b"


def test_wait_ready_waits_and_then_tries_the_key(client: Face) -> None:
    answers = [http.reset, reply(503, PROBLEM), reply(200, b"ok"), reply(200, model())]
    with ScriptedServer(answers) as server:
        assert client(server.url).wait_ready().member == "b"
        assert [request.path for request in server.requests] == ["/readyz"] * 3 + ["/v1/model"]
    with ScriptedServer([reply(200, b"ok"), reply(401, b"")]) as server, pytest.raises(JudgeDenied):
        client(server.url).wait_ready()
    with ScriptedServer([reply(503, PROBLEM)]) as server, pytest.raises(JudgeUnavailable, match="being loaded"):
        client(server.url).wait_ready(deadline_s=0.2)


def test_a_judge_stops_working_when_its_caller_leaves(client: Face) -> None:
    with ScriptedServer([reply(200, rollouts())]) as server:
        client(server.url).rollouts(ROLLOUTS, deadline_s=20)
        client(server.url, timeout=3600).rollouts(ROLLOUTS)
        assert [request.json()["deadline_s"] for request in server.requests] == [20.0, 600.0]


def test_text_that_has_no_utf8_is_sent_all_the_same(client: Face) -> None:
    item = SCORES.items[1].model_copy(
        update={"completions": ["half a pair: \ud83d", "a whole one: \U0001f600", "plain"]}
    )
    request = SCORES.model_copy(update={"items": [item]})
    body = scores()
    body["items"] = [{**body["items"][1], "answers": [None] * 3}]
    with ScriptedServer([reply(200, body)]) as server:
        client(server.url).scores(request)
        sent = server.requests[0].json()["items"][0]["completions"]
    assert sent == ["half a pair: \ufffd", "a whole one: \U0001f600", "plain"]


def test_an_idempotency_key_stays_over_the_attempts(client: Face) -> None:
    from corl.wire import JobRequest

    request = JobRequest(kind="rollouts", request=ROLLOUTS)
    with ScriptedServer([http.reset, reply(503, PROBLEM), reply(202, job("queued", done=0))]) as server:
        judge = client(server.url, backoff=QUICK)
        judge.submit(request)
        judge.submit(request)
        judge.submit(request, "mine")
        keys = [received.headers["idempotency-key"] for received in server.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3] != keys[4] == "mine"
    with pytest.raises(ValueError, match="idempotency_key"):
        client(server.url).submit(request, "no\nline breaks")


def test_a_cancel_whose_answer_was_lost_has_succeeded(client: Face) -> None:
    with ScriptedServer([http.hang_up, reply(404, b"")]) as server:
        client(server.url).cancel("j/1")
        assert [r.path for r in server.requests] == ["/v1/jobs/j%2F1"] * 2


def test_all_errors_have_one_root() -> None:
    assert issubclass(JudgeUnavailable, CorlError)
    assert issubclass(JobGone, JudgeRefused)
    assert not issubclass(JudgeUnavailable, JudgeRefused)


def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    untrusted = ssl.SSLCertVerificationError("self-signed certificate")
    found = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]")
    found.__cause__ = untrusted
    attempt = Attempt(Request("GET", "/v1/model"), 1.0)
    assert fault(found, attempt).kind == "lasting"
    assert fault(httpx.ConnectError("refused"), attempt).kind == "passing"
    steps = exchange(Judge("https://judge"), attempt.request, lambda _: None, deadline=Deadline(60), backoff=Backoff())
    assert isinstance(next(steps), Attempt)
    with pytest.raises(JudgeUnavailable, match=r"cannot be reached \(1 attempt .*self-signed certificate"):
        steps.send(fault(found, attempt))
