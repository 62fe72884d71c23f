"""A worker process that a test can kill."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

START_S = 60.0


class Child:
    """`case_worker.py` in a process of its own, replaced when it had to be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.answers.case_worker"]
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder, env=environment
        )
        assert self._line(process, START_S) == "ready\n"
        return process

    @staticmethod
    def _line(process: subprocess.Popen[str], deadline_s: float) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], deadline_s)
        return process.stdout.readline() if ready else None

    def run(self, case: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """`value`, `raised` or `killed`, with what it says."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self._line(self.process, deadline_s)
        if line:
            return dict(json.loads(line))
        self.stop()
        self.process = self._start()
        return {"killed": f"no result within {deadline_s} s" if line is None else "the worker died"}

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()
