"""The process of `lpc lmcache front`: it listens, and ends with a signal."""

import asyncio
import contextlib
import os
import signal
import socket
import sys

import uvicorn

from lpc.lmcache.errors import LMCacheUnfit
from lpc.lmcache.gate import front


def serve_front(target: str, token: str, host: str, port: int) -> None:
    """Pass requests with the token on to ``target`` (host:port) until SIGINT or SIGTERM.

    Raises LMCacheUnfit: the target is no host:port, or the address cannot be listened on.
    """
    name, _, number = target.rpartition(":")
    if not name or not number.isdecimal():
        raise LMCacheUnfit(f"--to {target} is not host:port, such as 127.0.0.1:8080")
    with _listen(host, port) as listener:
        print(f"lpc: {host}:{listener.getsockname()[1]} lets the token through to {target}", file=sys.stderr, flush=True)
        _Server(uvicorn.Config(front(target, token), log_level="warning")).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends in order; uvicorn's own raises the signal again afterwards, into whatever is still running."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        # Python adds the address in words of its own.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise LMCacheUnfit(f"cannot listen on {host}:{port} ({reason}); choose another with --host and --port") from error
