"""Starts a cohort's processes in order, keeps them running, and ends them all.

One thread, one loop: signals and ended processes are noticed between its turns, so nothing here needs a lock. Nothing
that is started outlives it (see `corl.guard`).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from corl.guard import Guard
from corl.localredis import LocalRedis, LocalRedisError
from corl_trainer.launch.folder import Phase, ProcessState, State
from corl_trainer.launch.plan import Plan, Spec
from corl_trainer.launch.processes import Child, Restarts, last_lines
from corl_trainer.launch.progress import MemberProgress, line
from corl_trainer.launch.view import View
from corl_trainer.stops import ExitCode

__all__ = ["GaveUp", "Limits", "Stopped", "Supervisor"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and how often what is started again."""

    turn_s: float = 0.1
    probe_s: float = 0.5
    ready_s: float = 1800.0
    judge_restarts: int = 5
    trainer_restarts: int = 3
    redis_restarts: int = 5
    first_pause_s: float = 1.0
    drain_s: float = 40.0
    step_s: float = 60.0
    now_s: float = 20.0
    guard_s: float = 30.0


class GaveUp(Exception):
    """A process ended and will not be started again."""

    def __init__(self, name: str, why: str, log_lines: Sequence[str] = (), log: str = "") -> None:
        super().__init__(f"{name} {why}")
        self.log_lines = log_lines
        self.log = log


class Stopped(Exception):
    """Ended on request. `now`: without waiting for the steps under way."""

    def __init__(self, now: bool) -> None:
        super().__init__("stopped on request")
        self.now = now


class Saves(Protocol):
    def __call__(self, state: State) -> None: ...


@dataclass
class Managed:
    """A process with what is known of it."""

    spec: Spec
    child: Child
    state: ProcessState
    restarts: Restarts
    was_ready: bool = False
    starts: int = 0
    due: float = 0.0
    step_at_start: int = 0


@dataclass
class Supervisor:
    """`save` writes the state where others read it."""

    plan: Plan
    state: State
    progress: Sequence[MemberProgress]
    view: View
    guard: Guard
    save: Saves
    redis: LocalRedis | None = None
    limits: Limits = field(default_factory=Limits)
    _asked: int = field(default=0, init=False)
    _saved: str = field(default="", init=False)
    _probed: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        if self.redis is not None:
            self._redis_state = ProcessState(
                name="redis", kind="redis", state="running", pid=self.redis.pid, log=str(self.redis.log)
            )
            self._redis_restarts = Restarts(limits.redis_restarts, limits.first_pause_s)
            self.state.processes.append(self._redis_state)
        self.judges = [self._managed(spec, limits.judge_restarts) for spec in self.plan.judges]
        for member, url in self.plan.external.items():
            self.state.processes.append(
                ProcessState(name=f"judge-{member}", kind="judge", member=member, url=url, state="external")
            )
        self.trainers = [self._managed(spec, limits.trainer_restarts) for spec in self.plan.trainers]

    def run(self) -> None:
        """Until every trainer is done. Raises GaveUp or Stopped, with every process ended."""
        for progress in self.progress:
            list(progress.read())  # what an earlier attempt wrote is no news
        with self._signals():
            try:
                self._start_judges()
                self._start_trainers()
                while any(trainer.state.state != "ended" for trainer in self.trainers):
                    self._turn()
                    self._stop_if_asked()
                self._turn()  # the last records
                self._end(self.judges, patience=self.limits.drain_s)
            except Stopped:
                self._stop(self.limits.step_s, bounded=False)
                raise Stopped(now=self._asked > 1) from None
            except GaveUp:
                self._stop(self.limits.step_s, bounded=True)
                raise
            finally:
                self._kill_what_is_left()

    # Starting --------------------------------------------------------------------------------------------------------

    def _managed(self, spec: Spec, restarts: int) -> Managed:
        state = ProcessState(name=spec.name, kind=spec.kind, member=spec.member, url=spec.url, log=str(spec.log))
        self.state.processes.append(state)
        return Managed(spec, Child(spec.log, self.guard), state, Restarts(restarts, self.limits.first_pause_s))

    def _start_judges(self) -> None:
        self._phase("starting")
        for judge in self.judges:
            self._start(judge)
        names = ", ".join(judge.spec.name for judge in self.judges)
        if names:
            self.view.say(f"waiting for {names}")
        deadline = time.monotonic() + self.limits.ready_s
        while waiting := [judge for judge in self.judges if judge.state.state != "ready"]:
            self._turn()
            self._stop_if_asked()
            if time.monotonic() > deadline:
                late = waiting[0]
                raise self._gave_up(late, f"is not ready after {self.limits.ready_s:g} s")
        for member, url in self.plan.external.items():
            self.view.say(f"judge-{member} runs elsewhere, at {url}")

    def _start_trainers(self) -> None:
        for trainer in self.trainers:
            self._start(trainer)
        self._phase("running")
        names = ", ".join(trainer.spec.name for trainer in self.trainers)
        self.view.say(f"judges are ready; started {names}")

    def _start(self, managed: Managed) -> None:
        spec = managed.spec
        argv = spec.argv + (spec.first if managed.starts == 0 else ())
        try:
            managed.child.start(argv, spec.env)
        except OSError as error:
            raise self._gave_up(managed, f"cannot be started: {error}") from error
        managed.starts += 1
        if spec.kind == "trainer":
            progress = self._progress(spec.member)
            managed.step_at_start, progress.begun = progress.step, False
        managed.state.pid, managed.state.exit_code = managed.child.pid, None
        managed.state.state = "starting" if spec.kind == "judge" else "running"

    # One turn of the loop --------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        time.sleep(self.limits.turn_s)
        self._mind((*self.judges, *self.trainers))
        self._show()

    def _mind(self, processes: Sequence[Managed]) -> None:
        self._mind_redis()
        now = time.monotonic()
        for managed in processes:
            code = managed.child.ended()
            if code is not None:
                self._on_end(managed, code, now)
            elif managed.state.state == "restarting" and now >= managed.due:
                self._start(managed)
        self._probe()

    def _on_end(self, managed: Managed, code: int, now: float) -> None:
        state, name = managed.state, managed.spec.name
        state.pid, state.exit_code = None, code
        if managed.spec.kind == "trainer" and code == ExitCode.DONE:
            state.state = "ended"
            self.view.say(f"{name}: done")
            return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if self._hopeless(managed, code):
            raise self._gave_up(managed, how)
        pause = managed.restarts.pause(now - managed.child.began)
        if pause is None:
            raise self._gave_up(managed, f"{how} and was started again {managed.restarts.limit} times")
        state.restarts += 1
        state.state, managed.due = "restarting", now + pause
        count = f"{managed.restarts.count} of {managed.restarts.limit}"
        self.view.say(f"{name} {how}; it is started again in {pause:g} s ({count}), see {managed.spec.log}")

    def _hopeless(self, managed: Managed, code: int) -> bool:
        """Whether another start would fail in the same way."""
        if managed.spec.kind == "judge":
            return code >= 0 and not managed.was_ready
        unmoved = self._progress(managed.spec.member).step <= managed.step_at_start
        return code in (ExitCode.USAGE, ExitCode.FENCED) or (code == ExitCode.ERROR and unmoved)

    def _mind_redis(self) -> None:
        if self.redis is None or self.redis.pid is not None:
            return
        state = self._redis_state
        pause = self._redis_restarts.pause(0.0)
        if pause is None:
            raise GaveUp("redis", "ended too often", last_lines(self.redis.log), str(self.redis.log))
        self.view.say(f"redis has ended; it is started again, see {self.redis.log}")
        state.restarts += 1
        try:
            self.redis.restart()
        except LocalRedisError as error:
            raise GaveUp("redis", f"cannot be started again: {error}", (), str(self.redis.log)) from error
        state.pid = self.redis.pid

    def _probe(self) -> None:
        now = time.monotonic()
        starting = [judge for judge in self.judges if judge.state.state == "starting"]
        if not starting or now - self._probed < self.limits.probe_s:
            return
        self._probed = now
        with ThreadPoolExecutor(len(starting)) as pool:
            answers = list(pool.map(_is_ready, [judge.spec.url for judge in starting]))
        for judge, ready in zip(starting, answers, strict=True):
            if ready:
                judge.state.state, judge.was_ready = "ready", True
                self.view.say(f"{judge.spec.name} is ready at {judge.spec.url}")

    def _show(self) -> None:
        for progress in self.progress:
            for record in progress.read():
                if text := line(progress, record):
                    self.view.progress(text)
        self.view.update(self.state, self.progress)
        self._save()

    def _phase(self, phase: Phase) -> None:
        self.state.phase = phase
        self._save()

    def _save(self) -> None:
        text = self.state.model_dump_json()
        if text != self._saved:
            self._saved = text
            self.save(self.state)

    def _progress(self, member: str) -> MemberProgress:
        return next(progress for progress in self.progress if progress.member == member)

    def _gave_up(self, managed: Managed, why: str) -> GaveUp:
        managed.state.state = "failed"
        return GaveUp(managed.spec.name, why, last_lines(managed.spec.log), str(managed.spec.log))

    # Ending ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(number: int, frame: object) -> None:
            self._asked += 1

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop_if_asked(self) -> None:
        if self._asked:
            raise Stopped(now=False)

    def _stop(self, patience: float, *, bounded: bool) -> None:
        """Trainers finish their step and take a checkpoint; then the judges, whom they need for it, are ended.

        `bounded`: the trainers are not waited for longer than `patience`, for what they need may be what failed.
        """
        self._phase("stopping")
        running = [trainer for trainer in self.trainers if trainer.child.pid is not None]
        if running:
            hint = "" if bounded else "; once more to stop now"
            self.view.say(f"stopping: each trainer finishes its step and takes a checkpoint{hint}")
        try:
            self._end(running, patience if bounded else None, keep_up=() if bounded else self.judges)
        except GaveUp as error:
            self.view.say(f"{error}: the trainers stop now, without finishing the step")
            self._asked = max(self._asked, 2)
            self._end(running, self.limits.now_s)
        self._end(self.judges, patience=self.limits.drain_s)

    def _end(self, processes: Sequence[Managed], patience: float | None, keep_up: Sequence[Managed] = ()) -> None:
        """SIGTERM and wait; when patience ends, or at a second request, SIGTERM again; then SIGKILL.

        Until then what is in `keep_up`, and Redis, is started again if it ends. Raises GaveUp if that is in vain.
        """
        for managed in processes:
            managed.child.ask_to_end()
        if self._wait_ended(processes, patience, lambda: self._asked > 1, keep_up):
            return
        for managed in processes:
            managed.child.ask_to_end()
        if self._wait_ended(processes, self.limits.now_s, lambda: self._asked > 2):
            return
        for managed in processes:
            if managed.child.pid is not None:
                self.view.say(f"{managed.spec.name} does not end: killed")
                managed.child.kill()
        self._wait_ended(processes, None, lambda: False)

    def _wait_ended(
        self,
        processes: Sequence[Managed],
        patience: float | None,
        hurry: Callable[[], bool],
        keep_up: Sequence[Managed] = (),
    ) -> bool:
        deadline = None if patience is None else time.monotonic() + patience
        while True:
            for managed in processes:
                code = managed.child.ended()
                if code is not None:
                    managed.state.pid, managed.state.exit_code = None, code
                if managed.child.pid is None and managed.state.state != "failed":
                    managed.state.state = "ended"
            self._show()
            if all(managed.child.pid is None for managed in processes):
                return True
            if hurry() or (deadline is not None and time.monotonic() > deadline):
                return False
            if keep_up:
                self._mind(keep_up)
            time.sleep(self.limits.turn_s)

    def _kill_what_is_left(self) -> None:
        left = [managed for managed in (*self.trainers, *self.judges) if managed.child.pid is not None]
        for managed in left:
            managed.child.kill()
        while any(managed.child.pid is not None and managed.child.ended() is None for managed in left):
            time.sleep(0.01)


def _is_ready(url: str | None) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
