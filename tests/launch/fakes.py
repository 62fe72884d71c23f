"""Stand-ins for a judge and a trainer process: ready at once, no model, doing as a control file says.

    python -m tests.launch.fakes judge|trainer COHORT.YAML --member a ...

The control file, named by FAKE_CONTROL, maps a process ("judge-a", "trainer-b") to what it does: `step_s`,
`save_every`, `die_at_step` (SIGKILL to itself, once), `exit_at_step` and `code`, `exit_at_start` and `code`, `die_when`
(a file whose appearance ends it by SIGKILL, once), `die_always_when` (the same, at every start),
`until_judge_restarts` (its step lasts until that judge was started twice),
`deaf` (SIGTERM is ignored), `start_s`. Each start leaves a line in
`started`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from corl.cohort import load_cohort


class Control:
    def __init__(self, name: str) -> None:
        path = Path(os.environ["FAKE_CONTROL"])
        self.folder = path.parent
        self.name = name
        self.asked: dict[str, Any] = json.loads(path.read_text()).get(name, {})
        # A child of its own, as engines have.
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with (self.folder / "started").open("a") as file:
            file.write(f"{name} {os.getpid()} {self.child.pid} {' '.join(sys.argv[2:])}\n")
        if self.asked.get("exit_at_start"):
            print(f"{name} cannot start", flush=True)
            self.child.kill()
            sys.exit(self.asked["code"])
        time.sleep(self.asked.get("start_s", 0.0))

    def once(self, what: str) -> bool:
        """Whether this is the first time, over all starts of the process."""
        try:
            (self.folder / f"{self.name}.{what}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        while True:
            if "die_when" in self.asked and (self.folder / self.asked["die_when"]).exists() and self.once("died"):
                self.die()
            if "die_always_when" in self.asked and (self.folder / self.asked["die_always_when"]).exists():
                self.die()
            time.sleep(0.02)


def judge(arguments: argparse.Namespace) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    control = Control(f"judge-{arguments.member}")
    print(f"key {os.environ['CORL_API_KEY']} redis {os.environ['CORL_REDIS']}", flush=True)
    server = ThreadingHTTPServer((arguments.host, int(arguments.port)), Handler)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if control.asked.get("deaf") else lambda *_: os._exit(0))
    threading.Thread(target=control.watch, daemon=True).start()
    server.serve_forever()


def trainer(arguments: argparse.Namespace) -> None:
    control = Control(f"trainer-{arguments.member}")
    asked = 0

    def ask(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(3)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if control.asked.get("deaf") else ask)
    threading.Thread(target=control.watch, daemon=True).start()
    steps = load_cohort(arguments.cohort).training_for(arguments.member).steps
    folder = Path(arguments.run_dir) / arguments.member
    checkpoints = folder / "checkpoints"
    there = [int(path.parent.name.split("-")[1]) for path in checkpoints.glob("checkpoint-*/complete.json")]
    step = int(arguments.resume_step) if arguments.resume_step is not None else max(there, default=0)
    folder.mkdir(parents=True, exist_ok=True)

    def write(**record: Any) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def save() -> None:
        (checkpoints / f"checkpoint-{step}").mkdir(parents=True, exist_ok=True)
        (checkpoints / f"checkpoint-{step}" / "complete.json").write_text("{}")

    write(kind="start", step=step, steps=steps, incarnation=1, labels=0)
    write(kind="eval", step=step, **{"eval/pass@1": 0.25, "eval/maj@4": 0.5})
    while step < steps:
        if step == control.asked.get("exit_at_step"):
            print("something went wrong at the end", flush=True)
            sys.exit(control.asked["code"])
        if step == control.asked.get("die_at_step") and control.once("died"):
            control.die()
        if needed := control.asked.get("until_judge_restarts"):
            while (control.folder / "started").read_text().count(f"{needed} ") < 2:
                time.sleep(0.02)
        else:
            time.sleep(control.asked.get("step_s", 0.02))
        step += 1
        seconds = {"rollouts": 0.5, "update": 1.0, "step": 1.5}
        write(kind="step", step=step, seconds=seconds, **{"reward/mean": 0.5, "votes/labeled": 0.9})
        if step % control.asked.get("save_every", 2) == 0 or asked:
            save()
        if asked:
            sys.exit(3)
    save()
    write(kind="eval", step=step, **{"eval/pass@1": 0.75, "eval/maj@4": 1.0})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("cohort")
    for name in ("member", "host", "port", "weights", "run", "run-dir", "resume-step"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--judge", action="append")
    arguments = parser.parse_args()
    (judge if arguments.kind == "judge" else trainer)(arguments)


if __name__ == "__main__":
    main()
