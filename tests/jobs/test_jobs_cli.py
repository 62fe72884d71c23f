"""`corl jobs` against a Redis with jobs of two members in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from corl_judge.jobs import Item, JobQueue, JobRecords
from corl_judge.jobs_cli import app
from corl_judge.redisio import connect
from corl_judge.worker import encode_error
from typer.testing import CliRunner, Result

from corl.localredis import LocalRedis


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRedis]:
    monkeypatch.delenv("CORL_REDIS", raising=False)
    with LocalRedis() as server:
        yield server


@pytest.fixture
def jobs(server: LocalRedis) -> dict[str, str]:
    """Ids by what is with them."""

    async def fill() -> dict[str, str]:
        client = connect(server.url)
        ids = {}
        for member in ("a", "b"):
            queue = JobQueue(client, f"corl:{member}:requests")
            records = JobRecords(client, f"corl:{member}")
            record, _ = await records.create(
                kind="rollouts", request=b'{"n": 8}', queue="requests", keys=[f"k-{member}"]
            )
            await queue.submit(f"k-{member}", record.id.encode(), asker=record.id)
            ids[f"queued at {member}"] = record.id
        votes = JobQueue(client, "corl:a:votes")
        await votes.submit_many([Item("bad", b""), Item("good", b"")], asker="x")
        [lease] = await votes.claim("w", 1)
        await votes.fail(lease, encode_error("invalid", ValueError("300 tokens, the model takes 256")), final=True)
        ids["dead"] = lease.job
        await client.aclose()
        return ids

    return asyncio.run(fill())


def corl_jobs(server: LocalRedis, *arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--redis", server.url])
    assert result.exit_code == exit_code, result.output
    return result


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_queues_and_jobs_of_all_members_are_listed(server: LocalRedis, jobs: dict[str, str]) -> None:
    rows = lines(corl_jobs(server, "ls", "--json"))
    assert [(r["member"], r["queue"], r["waiting"], r["running"]) for r in rows if "queue" in r] == [
        ("a", "requests", 1, 0),
        ("a", "votes", 1, 0),
        ("b", "requests", 1, 0),
    ]
    assert [(r["job"], r["member"], r["kind"], r["status"]) for r in rows if "job" in r] == [
        (jobs["queued at b"], "b", "rollouts", "queued"),
        (jobs["queued at a"], "a", "rollouts", "queued"),
    ]
    text = corl_jobs(server, "ls", "--member", "b").stdout
    assert jobs["queued at b"] in text
    assert jobs["queued at a"] not in text


def test_a_job_is_shown_with_its_request(server: LocalRedis, jobs: dict[str, str]) -> None:
    [row] = lines(corl_jobs(server, "show", jobs["queued at b"], "--json"))
    assert (row["member"], row["status"], row["request"]) == ("b", "queued", {"n": 8})
    assert "status: queued" in corl_jobs(server, "show", jobs["queued at b"]).stdout


def test_cancelling_takes_the_work_out_of_the_queue(server: LocalRedis, jobs: dict[str, str]) -> None:
    job = jobs["queued at a"]
    assert corl_jobs(server, "cancel", job).stdout == f"{job}: cancelled\n"
    assert corl_jobs(server, "cancel", job).stdout == f"{job}: was cancelled already\n"
    rows = lines(corl_jobs(server, "ls", "--json", "-m", "a"))
    assert [(r["queue"], r["waiting"]) for r in rows if "queue" in r] == [("requests", 0), ("votes", 1)]
    assert [r["status"] for r in rows if "job" in r] == ["cancelled"]


def test_dead_items_are_listed_with_their_errors(server: LocalRedis, jobs: dict[str, str]) -> None:
    [row] = lines(corl_jobs(server, "dead", "--json"))
    assert (row["item"], row["member"], row["queue"], row["key"]) == (jobs["dead"], "a", "votes", "bad")
    assert (row["reason"], row["kind"], row["message"]) == ("rejected", "invalid", "300 tokens, the model takes 256")
    assert "300 tokens" in corl_jobs(server, "dead").stdout


def test_a_job_whose_work_is_dead_has_failed(server: LocalRedis, jobs: dict[str, str]) -> None:
    async def kill() -> None:
        client = connect(server.url)
        queue = JobQueue(client, "corl:a:requests")
        [lease] = await queue.claim("w", 1)
        await queue.fail(lease, b"", final=True)
        await client.aclose()

    asyncio.run(kill())
    [row] = lines(corl_jobs(server, "show", jobs["queued at a"], "--json"))
    assert row["status"] == "failed"


def test_an_empty_redis_has_nothing_to_say(server: LocalRedis) -> None:
    assert corl_jobs(server, "ls").stdout == "no queue is in use\n\nno jobs\n"
    assert corl_jobs(server, "dead").stdout == "nothing is dead\n"


def test_what_is_wrong_is_said(server: LocalRedis, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = corl_jobs(server, "show", "0197a3b2c4d-0", exit_code=1)
    assert "no job '0197a3b2c4d-0'" in str(unknown.exception)
    assert "there are: a, b" in corl_jobs(server, "ls", "-m", "c", exit_code=2).output
    without = CliRunner().invoke(app, ["ls"])
    assert without.exit_code == 2
    assert "CORL_REDIS" in without.output
    monkeypatch.setenv("CORL_REDIS", server.url)
    assert CliRunner().invoke(app, ["ls"]).exit_code == 0
