"""Work in the background: submitted, waited for, lost, failed; and the clients' own lives."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from corl.client import AsyncJudgeClient, Backoff, JudgeClient
from corl.errors import JobCancelled, JobFailed, JudgeInvalid, JudgeStale, JudgeUnavailable
from corl.wire import JobRequest, RolloutsResponse, ScoresResponse
from tests.client import http_script as http
from tests.client.conftest import Face
from tests.client.http_script import ScriptedServer, reply
from tests.client.samples import ROLLOUTS, SCORES, job, rollouts, scores, tag
from tests.client.test_client_checks import weighed

REQUEST = JobRequest(kind="rollouts", request=ROLLOUTS)
QUEUED = reply(202, job("queued", done=0))


def test_a_job_from_its_submission_to_its_result(client: Face) -> None:
    running = reply(200, job("running", done=1))
    with ScriptedServer([QUEUED, running, http.reset, running, reply(200, job())]) as server:
        judge = client(server.url)
        status = judge.submit(REQUEST)
        assert (status.id, status.status) == ("j1", "queued")
        assert judge.job("j1", wait_s=1.5).done == 1
        result = judge.result("j1")
        assert isinstance(result, RolloutsResponse)
        assert server.requests[0].json()["kind"] == "rollouts"
        assert server.requests[1].query == {"wait_s": ["1.500"]}
        assert float(server.requests[2].query["wait_s"][0]) > 1


def test_results_are_held_against_the_request_that_was_submitted(client: Face) -> None:
    body = rollouts(step=4)
    with ScriptedServer([QUEUED, reply(200, job(result=body))]) as server:
        judge = client(server.url)
        judge.submit(REQUEST)
        with pytest.raises(JudgeInvalid, match="step: expected 3, got 4"):
            judge.result("j1")
        assert client(server.url).result("j1").step == 4, "another client's job: nothing is known of its request"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"id": "j2"}, "id: expected 'j1', got 'j2'"),
        ({"done": 3}, "3 of 2 items"),
        ({"result": None}, "without its result"),
        ({"result": scores()}, "without its result"),
        ({"kind": "scores", "result": scores()}, "kind: expected 'rollouts', got 'scores'"),
        ({"status": "lost"}, "status"),
    ],
)
def test_a_status_that_does_not_fit(client: Face, changes: dict[str, object], told: str) -> None:
    with ScriptedServer([QUEUED, reply(200, job(**changes))]) as server:
        judge = client(server.url)
        judge.submit(REQUEST)
        with pytest.raises(JudgeInvalid, match=told):
            judge.result("j1")


def test_a_result_may_be_as_old_as_its_submission_but_not_older(client: Face) -> None:
    ahead = reply(200, job(result=weighed(rollouts(), tag(3))))
    script = [
        reply(200, weighed(rollouts(), tag(3))),
        QUEUED,
        reply(200, weighed(rollouts(), tag(4))),
        ahead,
        QUEUED,
        ahead,
    ]
    with ScriptedServer(script) as server:
        judge = client(server.url)
        judge.rollouts(ROLLOUTS)
        judge.submit(REQUEST)
        assert judge.rollouts(ROLLOUTS).weights.version == 4
        assert judge.result("j1").weights.version == 3
        judge.submit(REQUEST)
        with pytest.raises(JudgeStale):
            judge.result("j1")


def test_a_job_that_fails_is_an_error_with_its_reason(client: Face) -> None:
    error = {"title": "Engine died", "status": 500, "detail": "CUDA out of memory"}
    told = "job j1 failed: CUDA out of memory"
    with (
        ScriptedServer([reply(200, job("failed", error=error))]) as server,
        pytest.raises(JobFailed, match=told) as caught,
    ):
        client(server.url).result("j1")
    assert caught.value.problem is not None
    assert not isinstance(caught.value, JobCancelled)
    with ScriptedServer([reply(200, job("cancelled"))]) as server, pytest.raises(JobCancelled):
        client(server.url).result("j1")


def test_a_job_that_does_not_end_in_time(client: Face) -> None:
    told = "j1 is running, 1 of 2 items done"
    with ScriptedServer([reply(200, job("running", done=1))]) as server, pytest.raises(JudgeUnavailable, match=told):
        client(server.url).result("j1", deadline_s=1.5)
    cut = [reply(200, job("running", done=1)), http.hang]  # the deadline cuts the last look short
    with ScriptedServer(cut) as server, pytest.raises(JudgeUnavailable, match=told):
        client(server.url).result("j1", deadline_s=1.5)
    with ScriptedServer([http.hang]) as server, pytest.raises(JudgeUnavailable):
        client(server.url).result("j1", deadline_s=0.2)


def test_a_job_that_the_judge_lost_is_submitted_again(client: Face) -> None:
    lost = reply(404, {"title": "No such job", "status": 404})
    with ScriptedServer([QUEUED, lost, QUEUED, reply(410, b""), QUEUED, reply(200, job())]) as server:
        assert isinstance(client(server.url).submit_and_wait(REQUEST), RolloutsResponse)
        posts = [request for request in server.requests if request.method == "POST"]
        assert len(posts) == 3
        assert len({request.headers["idempotency-key"] for request in posts}) == 1
    with ScriptedServer([reply(202, job("done", kind="scores", result=scores()))]) as server:
        result = client(server.url).submit_and_wait(JobRequest(kind="scores", request=SCORES))
        assert isinstance(result, ScoresResponse)


# The clients' own lives ----------------------------------------------------------------------------------------------


def test_threads_share_a_client() -> None:
    with ScriptedServer([reply(200, scores())]) as server, JudgeClient(server.url) as judge:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: judge.scores(SCORES), range(64)))
        assert len(results) == len(server.requests) == 64


def test_closing_ends_a_call_that_waits_to_try_again() -> None:
    asked = threading.Event()

    def busy(peer: http.Peer, received: http.Received) -> None:
        reply(429, b"busy", retry_after="3000")(peer, received)
        asked.set()

    with ScriptedServer([busy]) as server, ThreadPoolExecutor(1) as pool:
        judge = JudgeClient(server.url, timeout=3600)
        call = pool.submit(judge.scores, SCORES)
        assert asked.wait(30)
        judge.close()
        with pytest.raises((RuntimeError, JudgeUnavailable)):
            call.result(30)
        with pytest.raises(RuntimeError, match="closed"):
            judge.model()


def test_one_async_client_in_several_loops() -> None:
    with ScriptedServer([reply(200, scores())]) as server:
        judge = AsyncJudgeClient(server.url)
        for _ in range(3):
            assert asyncio.run(judge.scores(SCORES)).member == "b"
        with ThreadPoolExecutor(4) as pool:
            assert len(list(pool.map(lambda _: asyncio.run(judge.scores(SCORES)), range(8)))) == 8


async def test_many_calls_at_once() -> None:
    with ScriptedServer([reply(200, scores())]) as server:
        async with AsyncJudgeClient(server.url, timeout=120) as judge:
            await asyncio.gather(*(judge.scores(SCORES) for _ in range(200)))
        assert len(server.requests) == 200
        with pytest.raises(RuntimeError, match="closed"):
            await judge.model()


async def test_a_cancelled_call_hangs_up() -> None:
    arrived, left = threading.Event(), threading.Event()

    def watch(peer: http.Peer, received: http.Received) -> None:
        arrived.set()
        http.hang(peer, received)
        left.set()

    with ScriptedServer([watch]) as server:
        async with AsyncJudgeClient(server.url) as judge:
            call = asyncio.create_task(judge.scores(SCORES))
            assert await asyncio.to_thread(arrived.wait, 30)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(left.wait, 30)


async def test_an_application_in_the_same_process() -> None:
    async def application(scope: dict, receive: object, send) -> None:  # type: ignore[no-untyped-def, type-arg]
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    transport = httpx.ASGITransport(application)  # type: ignore[arg-type]
    async with AsyncJudgeClient("http://judge", transport=transport, backoff=Backoff(0.01, 0.01)) as judge:
        with pytest.raises(JudgeUnavailable, match="503 Service Unavailable: /v1/model"):
            await judge.model(deadline_s=0.1)
