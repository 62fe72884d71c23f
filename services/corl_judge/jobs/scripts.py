"""The Lua scripts, each one atomic step; the files beside this module say what they take and give."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

__all__ = ["LUA", "Argument", "Script", "Scripts"]

Argument = str | bytes | int | float

LUA = resources.files(__package__) / "lua"


class Script:
    """A script known to the server by its digest; one that has forgotten it (a restart) is sent the text.

    By EVAL, and not by SCRIPT LOAD first: the server may be restarted between the two.
    """

    def __init__(self, redis: Redis, text: str) -> None:
        self._redis = redis
        self._text = text
        self._digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        values: list[Any] = [*keys, *args]
        try:
            return await cast("Any", self._redis.evalsha(self._digest, len(keys), *values))
        except NoScriptError:
            return await cast("Any", self._redis.eval(self._text, len(keys), *values))


class Scripts:
    """The scripts of one queue by name."""

    def __init__(self, redis: Redis, namespace: str, group: str) -> None:
        common = (LUA / "common.lua").read_text("utf-8")
        self._first = (namespace, group)
        self._keys = [f"{namespace}:work"]
        self._scripts = {
            file.name.removesuffix(".lua"): Script(redis, common + file.read_text("utf-8"))
            for file in LUA.iterdir()
            if file.name.endswith(".lua") and file.name != "common.lua"
        }

    async def run(self, name: str, *args: Argument) -> Any:
        return await self._scripts[name](self._keys, [*self._first, *args])
