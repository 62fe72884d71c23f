"""`corl jobs`: what is queued at the judges, and what died, read from their Redis."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from corl.errors import CorlError

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from rich.table import Table

    from corl_judge.jobs import DeadItem, Depth, JobQueue, JobRecord, JobRecords

__all__ = ["app"]

T = TypeVar("T")

app = typer.Typer(
    help="List, show and cancel the jobs of the judges.\n\nJobs are requests of `POST /v1/jobs`; their parts, a problem"
    " each, wait in the queues of a member. Both are read from the judges' Redis, and no judge needs to be up.\n\n"
    "\b\nExamples:\n  corl jobs ls --redis redis://127.0.0.1:6379\n"
    "  CORL_REDIS=unix://$PWD/runs/nano/redis/redis.sock corl jobs dead",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RedisOption = Annotated[
    str | None,
    typer.Option("--redis", envvar="CORL_REDIS", help="URL of the judges' Redis", show_envvar=True),
]
MemberOption = Annotated[str | None, typer.Option("--member", "-m", help="only this member's")]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object a line")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="at most this many of a member, newest first")]


class NoSuchJob(CorlError):
    """No member has a job of that id."""


@dataclass(frozen=True)
class Member:
    """What Redis holds of one member."""

    name: str
    records: JobRecords
    queues: dict[str, JobQueue]

    async def status(self, record: JobRecord) -> str:
        """The record's own, or `failed` where its work is dead and nobody has said so yet."""
        queue = self.queues.get(record.queue)
        if record.ended or queue is None:
            return record.status
        jobs = [job for job in await queue.find(record.keys) if job is not None]
        return "failed" if "dead" in (await queue.states(jobs) if jobs else []) else record.status


@app.command("ls")
def list_jobs(
    redis: RedisOption = None, member: MemberOption = None, limit: LimitOption = 20, as_json: JsonOption = False
) -> None:
    """List the depth of each queue, then the jobs, newest first."""

    async def look(members: list[Member]) -> tuple[list[tuple[str, str, Depth]], list[tuple[str, JobRecord, str]]]:
        depths = [(m.name, name, await queue.depth()) for m in members for name, queue in m.queues.items()]
        found = [(m.name, r, await m.status(r)) for m in members for r in await m.records.list(count=limit)]
        return depths, sorted(found, key=lambda row: row[1].created, reverse=True)

    depths, jobs = _run(redis, member, look)
    if as_json:
        for name, queue, depth in depths:
            _print_json(member=name, queue=queue, waiting=depth.waiting, running=depth.pending)
        for name, record, status in jobs:
            _print_json(member=name, **_fields(record, status))
        return
    queues = _table("member", "queue", "waiting", "running")
    for name, queue, depth in depths:
        queues.add_row(name, queue, str(depth.waiting), str(depth.pending))
    rows = _table("job", "member", "kind", "status", "age")
    for name, record, status in jobs:
        rows.add_row(record.id, name, record.kind, status, _age(record.created))
    _show(queues, "no queue is in use")
    typer.echo()
    _show(rows, "no jobs")


@app.command()
def show(
    job: Annotated[str, typer.Argument(help="id of the job")],
    redis: RedisOption = None,
    member: MemberOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job: what was asked, and how far it is."""

    async def look(members: list[Member]) -> tuple[str, JobRecord, str]:
        owner, record = await _find(members, job)
        return owner.name, record, await owner.status(record)

    name, record, status = _run(redis, member, look)
    fields = {"member": name, **_fields(record, status), "request": _readable(record.request)}
    if record.error is not None:
        fields["error"] = _readable(record.error)
    if as_json:
        _print_json(**fields)
        return
    for field, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        typer.echo(f"{field}: {text}")


@app.command()
def cancel(
    job: Annotated[str, typer.Argument(help="id of the job")], redis: RedisOption = None, member: MemberOption = None
) -> None:
    """Cancel a job, like `DELETE /v1/jobs/{id}`: work that others wait for too goes on."""

    async def withdraw(members: list[Member]) -> tuple[bool, JobRecord]:
        owner, record = await _find(members, job)
        cancelled = await owner.records.set_status(job, "cancelled")
        queue = owner.queues.get(record.queue)
        if cancelled and queue is not None:
            await queue.cancel([j for j in await queue.find(record.keys) if j is not None], asker=job)
        return cancelled, record

    cancelled, record = _run(redis, member, withdraw)
    typer.echo(f"{job}: {'cancelled' if cancelled else f'was {record.status} already'}")


@app.command()
def dead(
    redis: RedisOption = None, member: MemberOption = None, limit: LimitOption = 20, as_json: JsonOption = False
) -> None:
    """List work items that were given up: they failed too often, were refused, or ended their workers."""

    async def look(members: list[Member]) -> list[tuple[str, str, DeadItem]]:
        found = [
            (m.name, name, item)
            for m in members
            for name, queue in m.queues.items()
            for item in await queue.dead(limit)
        ]
        return sorted(found, key=lambda row: row[2].at, reverse=True)

    from corl_judge.jobs.errors import decode_error

    rows = _table("item", "member", "queue", "reason", "failures", "lapses", "age", "error")
    for name, queue, item in _run(redis, member, look):
        kind, message = decode_error(item.error)
        if as_json:
            _print_json(
                member=name,
                queue=queue,
                item=item.job,
                key=item.key,
                reason=item.reason,
                failures=item.failures,
                lapses=item.lapses,
                at=item.at,
                kind=kind,
                message=message,
            )
        rows.add_row(item.job, name, queue, item.reason, str(item.failures), str(item.lapses), _age(item.at), message)
    if not as_json:
        _show(rows, "nothing is dead")


# Looking -------------------------------------------------------------------------------------------------------------


def _run(url: str | None, member: str | None, work: Callable[[list[Member]], Awaitable[T]]) -> T:
    if url is None:
        raise typer.BadParameter(
            "name the judges' Redis, e.g. redis://HOST:6379/0, or set CORL_REDIS; that of `corl run` is "
            "unix:///ABSOLUTE/RUN/FOLDER/redis/redis.sock",
            param_hint="'--redis'",
        )
    return asyncio.run(_connected(url, member, work))


async def _connected(url: str, member: str | None, work: Callable[[list[Member]], Awaitable[T]]) -> T:
    from corl_judge.redisio import check_redis, connect

    redis = connect(url, max_connections=4, client_name="corl-jobs")
    try:
        await check_redis(redis, url, deadline_s=5.0)
        members = await _members(redis)
        if member is not None and member not in members:
            known = ", ".join(members) or "none"
            raise typer.BadParameter(f"no member {member!r} has used this Redis; there are: {known}", param_hint="-m")
        return await work([found for name, found in members.items() if member in (None, name)])
    finally:
        await redis.aclose()


async def _members(redis: Redis) -> dict[str, Member]:
    """Those with a queue or records, by the names of their keys: `corl:MEMBER:QUEUE:work`, `corl:MEMBER:records`."""
    from corl_judge.jobs import JobQueue, JobRecords

    queues: dict[str, dict[str, JobQueue]] = {}
    async for key in redis.scan_iter("corl:*:work", count=1000, _type="stream"):
        namespace = key.decode().removesuffix(":work")
        prefix, _, queue = namespace.rpartition(":")
        queues.setdefault(prefix.removeprefix("corl:"), {})[queue] = JobQueue(redis, namespace)
    async for key in redis.scan_iter("corl:*:records", count=1000, _type="zset"):
        queues.setdefault(key.decode().removesuffix(":records").removeprefix("corl:"), {})
    return {
        name: Member(name, JobRecords(redis, f"corl:{name}"), dict(sorted(queues[name].items())))
        for name in sorted(queues)
    }


async def _find(members: list[Member], job: str) -> tuple[Member, JobRecord]:
    for member in members:
        if (record := await member.records.get(job)) is not None:
            return member, record
    raise NoSuchJob(f"no job {job!r}: it expired, or it was never there (`corl jobs ls` lists them)")


# Saying --------------------------------------------------------------------------------------------------------------


def _fields(record: JobRecord, status: str) -> dict[str, Any]:
    return {"job": record.id, "kind": record.kind, "status": status, "created_at": record.created}


def _readable(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return f"{len(text)} bytes"


def _age(at: float) -> str:
    seconds = max(time.time() - at, 0.0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != "error", overflow="fold")
    return table


def _show(table: Table, nothing: str) -> None:
    if not table.row_count:
        typer.echo(nothing)
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=200)).print(table)


def _print_json(**fields: Any) -> None:
    typer.echo(json.dumps(fields, ensure_ascii=False))
