"""A judge over a scripted engine in a process of its own: `python -m tests.judge.process JSON`.

`engine`: the answers to give in turn and the delay of each; a prompt that holds "kill the engine" ends it.
"""

from __future__ import annotations

import json
import sys

from corl_judge.serve import serve
from corl_judge.settings import Settings

from tests.scripted import ScriptedEngine, boxed


def main() -> int:
    asked = json.loads(sys.argv[1])
    engine = ScriptedEngine(boxed(*asked["engine"]["answers"]), delay_s=asked["engine"]["delay_s"])

    def fail(prompt: str) -> None:
        if "kill the engine" in prompt:
            engine.die()

    engine.fail = fail
    return serve(Settings(**asked["settings"]), engine)


if __name__ == "__main__":
    sys.exit(main())
