"""Loopback ports that stay ours from the moment they are chosen."""

from __future__ import annotations

import contextlib
import errno
import socket

from corl.errors import CorlError

__all__ = ["PortTaken", "Ports"]


class PortTaken(CorlError):
    """A port that was asked for is in use."""


class Ports:
    """Reserves ports by keeping a bound socket that never listens.

    No other process is given such a port, and a server that sets SO_REUSEADDR, as ours do, can still listen on it,
    also when it is started again. That holds on Linux; elsewhere a port is free when it is chosen and no more.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()

    def take(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Reserve a port; 0 chooses a free one. Raises PortTaken."""
        holder = self._held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        try:
            holder.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise PortTaken(f"{host}:{port} cannot be listened on: {error.strerror}") from error
            raise
        # Set after the port was chosen, so that no other socket of this kind was passed over.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return int(holder.getsockname()[1])

    def close(self) -> None:
        self._held.close()
