"""What a trainer's step costs, and where its seconds go.

    python benchmarks/trainer.py [--services] [--publish] [--cohort] [--slow-teacher] [--ahead]   (all if none is named)

*Services*: the step of a nano model through its judge (a process of its own, transformers engine, Redis, weights
folder) over the step of plain TRL GRPO that generates in the process, same model, problems and sizes, in turns.

*Publish*: seconds to write a snapshot, by model size (bfloat16): copies, digests, files, flush, rename.

*Cohort*: the step of one member whose teachers are 1, 3 and 7 scripted judges (`topology: all`), over that with 1.

*Slow teacher*: two members whose engines take a second a step; the teacher's step takes three times the pupil's. The
pupil's step where it waits for the teacher's rollouts (`vote.wait_s`), and where the teacher's judge samples at once.

*Ahead*: engine and update of equal length (both sleep, so that neither takes the other's core): the step with
`rollouts.ahead: 1` over that with 0.

Medians of steps; the first of a run is left out. Ratios are of one run on one machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import typer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
MODELS = ROOT / "examples" / "arithmetic" / "models"
EXAMPLE = ROOT / "examples" / "arithmetic" / "cohort.yaml"
DELAY_S = 1.0


# Judges and trainers --------------------------------------------------------------------------------------------------


def judge_main(asked: dict[str, Any]) -> None:
    """A judge over the transformers engine that sleeps before it generates."""
    import asyncio

    import torch
    import uvicorn
    from corl_judge.app import create_app
    from corl_judge.engines.transformers import TransformersEngine
    from corl_judge.settings import Settings

    class Slow(TransformersEngine):
        async def generate(self, request: Any) -> Any:
            await asyncio.sleep(asked["delay_s"])
            return await super().generate(request)

    torch.set_num_threads(1)
    settings = Settings(**asked["settings"])
    app = create_app(settings, Slow(settings.model))
    uvicorn.run(app, host="127.0.0.1", port=settings.port, log_level="error")


def trainer_main(asked: dict[str, Any]) -> None:
    """A trainer whose update sleeps."""
    with contextlib.redirect_stdout(io.StringIO()):
        train(**asked)


def child(kind: str, asked: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--child", kind, json.dumps(asked)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def cpu_seconds(groups: Sequence[int] = ()) -> float:
    """CPU seconds of this process and of other process groups so far."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat") if groups else ():
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups:
                ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def judges(folder: Path, members: dict[str, float], groups: list[int] | None = None) -> Iterator[dict[str, str]]:
    """Addresses of judge processes, by member; the values are seconds slept before each generation."""
    from corl.client import JudgeClient
    from corl.localredis import LocalRedis

    with ExitStack() as stack:
        redis = stack.enter_context(LocalRedis())
        urls = {}
        for member, delay_s in members.items():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            settings = {
                "member": member,
                "model": str(MODELS / member),
                "engine": "transformers",
                "redis": redis.url,
                "weights": str(folder / "weights"),
                "cohort_file": str(EXAMPLE),
                "vote_max_tokens": 8,
                "port": port,
            }
            process = child("judge", {"settings": settings, "delay_s": delay_s})
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if groups is not None:
                groups.append(process.pid)
            urls[member] = f"http://127.0.0.1:{port}"
        for url in urls.values():
            with JudgeClient(url) as client:
                client.wait_ready(deadline_s=180)
        yield urls


def train(
    member: str,
    urls: dict[str, str],
    folder: str,
    run: str,
    overrides: dict[str, Any],
    update_s: float = 0.0,
    groups: Sequence[int] = (),
) -> list[dict[str, float]]:
    """Seconds of each step by phase, without the first; `cpu` those of this process and of `groups`."""
    from unittest import mock

    import torch
    from corl_trainer.grpo import MemberTrainer
    from corl_trainer.member import train_member
    from corl_trainer.runlog import read_member
    from corl_trainer.settings import TrainerSettings

    from corl.cohort import load_cohort

    original, forward = MemberTrainer.training_step, MemberTrainer._get_per_token_logps_and_entropies
    stamps: list[float] = []
    passes: list[float] = []

    def timed(self: Any, *args: Any, **more: Any) -> Any:
        begun = time.perf_counter()
        result = forward(self, *args, **more)
        if not torch.is_grad_enabled():
            passes.append(time.perf_counter() - begun)
        return result

    def slow(self: Any, *args: Any, **more: Any) -> Any:
        stamps.append(cpu_seconds(groups))
        result = original(self, *args, **more)
        time.sleep(update_s)
        return result

    reward = overrides.pop("reward", None)
    base = {"problems.heldout": None, "training.save_every": 10_000, "training.service_deadline_s": 900}
    cohort = load_cohort(EXAMPLE, reward=reward, overrides=base | overrides)
    run_dir = Path(folder) / run
    settings = TrainerSettings.build(
        cohort, member, run=run, run_dir=run_dir, judges=urls, weights=Path(folder) / "weights"
    )
    with (
        mock.patch.object(MemberTrainer, "training_step", slow),
        mock.patch.object(MemberTrainer, "_get_per_token_logps_and_entropies", timed),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = train_member(settings)
    if code:
        raise SystemExit(f"the trainer of {member} ended with {code}")
    rows = [row["seconds"] for row in read_member(run_dir / member).steps[1:]]
    for row, begun, ended in zip(rows, stamps[1:], [*stamps[2:], cpu_seconds(groups)], strict=True):
        row["cpu"] = ended - begun
    for row, seconds in zip(rows, passes[1:], strict=True):
        row["ratio"] = seconds
    return rows[:-1]  # the last one's CPU seconds include the end of the run


def median(rows: list[dict[str, float]], phase: str = "step") -> float:
    return statistics.median(row[phase] for row in rows)


# What is measured -----------------------------------------------------------------------------------------------------


def services(folder: Path, steps: int) -> None:
    overrides = {
        "reward": "self",
        "training.steps": steps,
        "rollouts.problems_per_step": 32,
        "rollouts.n": 8,
    }
    through: list[dict[str, float]] = []
    plain: list[dict[str, float]] = []
    groups: list[int] = []
    with judges(folder, {"llama": 0.0}, groups) as urls:
        for turn in range(2):
            through += train("llama", urls, str(folder), f"services-{turn}", dict(overrides), groups=groups)
            plain += plain_grpo(folder, dict(overrides))
    for name, what in (("step", "wall"), ("cpu", "CPU")):
        ours, bare = median(through, name), median(plain, name)
        print(
            f"a step's {what} seconds: through services {ours:.3f}, plain TRL GRPO {bare:.3f}, ratio {ours / bare:.2f}"
        )
    parts = {name: median(through, name) for name in ("rollouts", "scores", "update", "publish")}
    print("  wall seconds: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    print(f"  of the update, the forward pass for the importance ratio: {median(through, 'ratio'):.3f}; plain has none")
    print(f"  plain: generation {median(plain, 'generate'):.3f} of it")


def plain_grpo(folder: Path, overrides: dict[str, Any]) -> list[dict[str, float]]:
    """TRL's own trainer, which generates with the model that it trains; the reward is the own vote, as above."""
    from corl_trainer.schedule import Schedule
    from corl_trainer.settings import TrainerSettings, grpo_config
    from corl_trainer.trl_import import GRPOTrainer
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from transformers.utils.logging import disable_progress_bar

    from corl.answers import extract
    from corl.cohort import load_cohort, load_problems
    from corl.rewards import self_rewards

    disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)
    cohort = load_cohort(EXAMPLE, reward=overrides.pop("reward"), overrides={"problems.heldout": None} | overrides)
    settings = TrainerSettings.build(
        cohort, "llama", run="plain", run_dir=folder / "plain", judges={"llama": "http://127.0.0.1:1"}
    )
    config = grpo_config(settings)
    config.save_strategy = "no"
    problems, n = load_problems(cohort), cohort.rollouts.n
    schedule = Schedule(problems.ids, cohort.training.data_seed, cohort.rollouts.problems_per_step)
    rows = [
        {"prompt": [m.model_dump() for m in cohort.prompt.messages(problems.text(problem))]}
        for _, problem in schedule.rows(cohort.training.steps)
    ]

    def reward(completions: list[Any], **_: Any) -> list[float | None]:
        answers = [extract(completion[0]["content"]) for completion in completions]
        return [r for i in range(0, len(answers), n) for r in self_rewards(answers[i : i + n])]

    seconds: list[dict[str, float]] = []
    generating = [0.0]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            generating[0] = 0.0
            self.begun, self.cpu = time.perf_counter(), cpu_seconds()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wall = time.perf_counter() - self.begun
            seconds.append({"step": wall, "cpu": cpu_seconds() - self.cpu, "generate": generating[0]})

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            result = super()._generate_single_turn(*args, **more)
            generating[0] += time.perf_counter() - begun
            return result

    trainer = Timed(
        model=str(MODELS / "llama"),
        reward_funcs=[reward],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(MODELS / "llama", padding_side="left"),
        callbacks=[Clock()],
    )
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return seconds[1:]


def publish(folder: Path) -> None:
    import torch
    from corl_trainer.publish import Publisher

    for millions in (1, 10, 100, 500):
        tensors = [(f"layer.{i}", torch.randn(millions * 1000, 100).to(torch.bfloat16)) for i in range(10)]
        seconds = []
        for turn in range(3):
            own = Publisher(folder, "publish", f"m{millions}", turn + 1)
            begun = time.perf_counter()
            own.write(0, tensors, {})
            seconds.append(time.perf_counter() - begun)
        took, size = statistics.median(seconds), millions * 2e6
        print(f"publish {millions:4d} M parameters ({size / 1e6:.0f} MB): {took:.3f} s, {size / took / 1e6:.0f} MB/s")


def scripted_judges(count: int, pipe: Any) -> None:
    """In a process of their own; answers with addresses and waits until it is told to end."""
    from tests.trainer.fake_judge import FakeJudge, answers

    with ExitStack() as stack:
        found = {"llama": stack.enter_context(FakeJudge("llama", str(MODELS / "llama"), answers("a"))).url}
        for i in range(count):
            judge = FakeJudge(f"t{i}", str(MODELS / "qwen"), answers(f"t{i}"), frozen=True)
            found[f"t{i}"] = stack.enter_context(judge).url
        pipe.send(found)
        pipe.recv()


def cohort(folder: Path, steps: int) -> None:
    context = multiprocessing.get_context("spawn")
    rows: dict[int, list[dict[str, float]]] = {1: [], 3: [], 7: []}
    for turn in range(2):
        for count, found in rows.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=scripted_judges, args=(count, theirs))
            process.start()
            urls = ours.recv()
            members = {
                f"t{i}": {"model": str(MODELS / "qwen"), "engine": "transformers", "frozen": True} for i in range(count)
            }
            overrides: dict[str, Any] = {
                "members": {"llama": {"model": str(MODELS / "llama"), "engine": "transformers"}, **members},
                "topology": "all",
                "training.steps": steps,
                "rollouts.problems_per_step": 32,
                "rollouts.n": 8,
            }
            found += train("llama", urls, str(folder), f"cohort-{count}-{turn}", overrides)
            ours.send("end")
            process.join()
    base = median(rows[1])
    for count, found in rows.items():
        whole = median(found)
        asking = median(found, "scores") + median(found, "waiting")
        print(f"cohort of {count + 1}: step {whole:.3f} s ({whole / base:.2f}), scores {asking:.3f} s of it")


def slow_teacher(folder: Path, steps: int) -> None:
    small = {"training.steps": steps, "rollouts.problems_per_step": 8, "rollouts.n": 8}
    with judges(folder, {"llama": DELAY_S, "qwen": DELAY_S}) as urls:
        alone = median(train("llama", urls, str(folder), "alone", small | {"reward": "self"}))
        print(f"the pupil by itself: {alone:.2f} s a step")
        for name, wait_s in (("wait", 600.0), ("sample", 0.0)):
            overrides = small | {"vote.wait_s": wait_s}
            asked = {
                "member": "qwen",
                "urls": urls,
                "folder": str(folder),
                "run": f"slow-{name}",
                "overrides": small | {"reward": "self"},
                "update_s": 3 * alone - DELAY_S,
            }
            teacher = child("trainer", asked)
            try:
                rows = train("llama", urls, str(folder), f"slow-{name}", overrides)
            finally:
                teacher.terminate()
                teacher.wait()
            fresh = fresh_votes(folder / f"slow-{name}" / "llama")
            whole = median(rows)
            print(f"teacher 3x slower, {name:6}: {whole:.2f} s a step ({whole / alone:.2f}), {fresh:.0%} fresh votes")


def fresh_votes(folder: Path) -> float:
    from corl_trainer.runlog import read_member

    rows = read_member(folder).steps[1:]
    return sum(row["votes/fresh"] for row in rows) / (8 * len(rows))


def ahead(folder: Path, steps: int) -> None:
    found: dict[int, list[dict[str, float]]] = {0: [], 1: []}
    with judges(folder, {"llama": DELAY_S}) as urls:
        for turn in range(2):
            for on, rows in found.items():
                overrides = {
                    "reward": "self",
                    "training.steps": steps,
                    "rollouts.ahead": on,
                    "rollouts.problems_per_step": 8,
                    "rollouts.n": 8,
                }
                # The engine's own work is added to its sleep, so the update sleeps as long as rollouts take.
                rows += train("llama", urls, str(folder), f"ahead-{on}-{turn}", overrides, update_s=DELAY_S)
    off, on = median(found[0]), median(found[1])
    print(f"ahead 0: {off:.2f} s a step, ahead 1: {on:.2f} s: ratio {on / off:.2f}")


CHILDREN = {"judge": judge_main, "trainer": trainer_main}


def main(
    only_services: Annotated[bool, typer.Option("--services")] = False,
    only_publish: Annotated[bool, typer.Option("--publish")] = False,
    only_cohort: Annotated[bool, typer.Option("--cohort")] = False,
    only_slow_teacher: Annotated[bool, typer.Option("--slow-teacher")] = False,
    only_ahead: Annotated[bool, typer.Option("--ahead")] = False,
    steps: Annotated[int, typer.Option(min=3)] = 8,
) -> None:
    """See the top of the file."""
    logging.getLogger("corl.client").setLevel(logging.ERROR)
    everything = not any((only_services, only_publish, only_cohort, only_slow_teacher, only_ahead))
    with tempfile.TemporaryDirectory(prefix="corl-bench-") as name:
        folder = Path(name)
        (folder / "weights").mkdir()
        if everything or only_services:
            services(folder, steps)
        if everything or only_publish:
            publish(folder)
        if everything or only_cohort:
            cohort(folder, steps)
        if everything or only_slow_teacher:
            slow_teacher(folder, steps)
        if everything or only_ahead:
            ahead(folder, steps)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](json.loads(sys.argv[3]))
    else:
        typer.run(main)
