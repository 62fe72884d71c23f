"""The vote book: first writer wins, keys never meet, steps are dropped whole, many waits share one poller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from corl_judge.redisio import connect
from corl_judge.votebook import Filed, VoteBook, VoteKey, text_id
from redis.asyncio import Redis

from corl.votes import Histogram
from corl.wire import WeightsTag
from tests.judge.harness import until

TAG = WeightsTag(incarnation=1, version=7, digest="d")


def filed(*answers: str, source: str = "rollout") -> Filed:
    return Filed(Histogram.of(answers).to_bytes(), TAG, source)  # type: ignore[arg-type]


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
async def book(redis: Redis, redis_namespace: str) -> AsyncIterator[VoteBook]:
    book = VoteBook(redis, redis_namespace, ttl_s=60.0)
    yield book
    await book.close()


async def test_the_first_writer_wins(book: VoteBook) -> None:
    key = VoteKey("r", 3, "p1")
    await book.file({key: filed("4", "4")})
    await book.file({key: filed("5")})
    found = await book.read([key, VoteKey("r", 4, "p1")])
    assert found == {key: filed("4", "4")}
    assert Histogram.from_bytes(found[key].histogram).tally().answer == "4"


async def test_concurrent_writers_have_one_winner_that_all_read(book: VoteBook) -> None:
    key = VoteKey("r", 3, "p1")

    async def write(answer: str) -> Filed:
        await book.file({key: filed(answer)})
        return (await book.read([key]))[key]

    seen = await asyncio.gather(*(write(str(i)) for i in range(20)))
    assert all(vote == seen[0] for vote in seen)


async def test_keys_never_meet(book: VoteBook) -> None:
    keys = [
        VoteKey("r", 1, "p"),
        VoteKey("r", 11, "p"),
        VoteKey("r1", 1, "p"),
        VoteKey("r", 1, "p:"),
        VoteKey(None, "1", "p"),
        VoteKey("r", "1@d", "p"),
    ]
    for index, key in enumerate(keys):
        await book.file({key: filed(str(index))})
    found = await book.read(keys)
    assert [found[key] for key in keys] == [filed(str(index)) for index in range(len(keys))]


def test_texts_are_hashed_so_that_no_joining_confuses_them() -> None:
    assert text_id("ab", "c") != text_id("a", "bc") != text_id("abc")
    assert text_id("\ud800") == text_id("\ud800")


async def test_votes_expire(redis: Redis, redis_namespace: str) -> None:
    book = VoteBook(redis, redis_namespace, ttl_s=0.2)
    key = VoteKey("r", 1, "p")
    await book.file({key: filed("4")})

    async def gone() -> bool:
        return not await book.read([key])

    await until(gone)


@pytest.mark.parametrize(("bounds", "left"), [({"before": 3}, [3, 4, 5]), ({"after": 3}, [1, 2, 3])])
async def test_steps_are_dropped_whole_and_only_of_their_run(
    book: VoteBook, bounds: dict[str, int], left: list[int]
) -> None:
    for step in range(1, 6):
        for problem in ("p1", "p2"):
            await book.file({VoteKey("r", step, problem): filed("4")})
    await book.file({VoteKey("other", 1, "p1"): filed("4")})
    await book.file({VoteKey("other", 5, "p1"): filed("4")})
    assert await book.drop("r", **bounds) == 4
    found = await book.read([VoteKey("r", step, p) for step in range(1, 6) for p in ("p1", "p2")])
    assert sorted({key.slot for key in found}) == left
    assert len(await book.read([VoteKey("other", 1, "p1"), VoteKey("other", 5, "p1")])) == 2
    assert await book.drop("r", **bounds) == 0


async def test_a_wait_ends_when_any_of_its_keys_is_filed(book: VoteBook) -> None:
    keys = [VoteKey("r", 1, f"p{i}") for i in range(2500)]
    waiting = [asyncio.create_task(book.wait(keys, 30)) for _ in range(3)]
    other = asyncio.create_task(book.wait([VoteKey("r", 2, "p")], 30))
    await until(lambda: book.watched == 2501)
    await book.file({keys[1234]: filed("4")})
    await asyncio.gather(*waiting)
    assert not other.done()
    assert book.watched == 1
    await book.file({VoteKey("r", 2, "p"): filed("4")})
    await other
    assert book.watched == 0


async def test_a_wait_ends_with_its_time_and_leaves_nothing(book: VoteBook) -> None:
    await book.wait([VoteKey("r", 1, "p")], 0.05)
    await book.wait([], 30)
    assert book.watched == 0
