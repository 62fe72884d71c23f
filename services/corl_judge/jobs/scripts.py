"""The Lua scripts, each one atomic step of the queue; the files beside this module say what they take and give."""

from __future__ import annotations

from importlib import resources
from typing import Any

from redis.asyncio import Redis

__all__ = ["Scripts"]


class Scripts:
    """Runs a script by name on one queue. A restarted Redis has forgotten them; they are then sent again."""

    def __init__(self, redis: Redis, namespace: str, group: str) -> None:
        folder = resources.files(__package__) / "lua"
        common = (folder / "common.lua").read_text("utf-8")
        self._first = (namespace, group)
        self._keys = [f"{namespace}:work"]
        self._scripts = {
            file.name.removesuffix(".lua"): redis.register_script(common + file.read_text("utf-8"))
            for file in folder.iterdir()
            if file.name.endswith(".lua") and file.name != "common.lua"
        }

    async def run(self, name: str, *args: str | bytes | int | float) -> Any:
        return await self._scripts[name](keys=self._keys, args=[*self._first, *args])
