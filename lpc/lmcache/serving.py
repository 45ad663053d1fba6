"""The process of `lpc lmcache front`: it listens, and ends with a signal."""

import asyncio
import contextlib
import signal
import sys

import httpx
import uvicorn

from lpc.errors import UsageError
from lpc.lmcache.errors import LMCacheUnfit
from lpc.lmcache.gate import front
from lpc.wire.listening import listen


def serve_front(target: str, token: str, host: str, port: int) -> None:
    """Pass requests with the token on to ``target`` (host:port) until SIGINT or SIGTERM.

    Raises UsageError: the target is not host:port. Raises LMCacheUnfit: the address cannot be listened on.
    """
    name, _, number = target.rpartition(":")
    try:
        if not name or not number.isdecimal():
            raise ValueError
        app = front(target, token)
    except (ValueError, httpx.InvalidURL):
        raise UsageError(f"--to {target} is not host:port, such as 127.0.0.1:8080") from None
    try:
        listener = listen(host, port)
    except OSError as error:
        reason = error.strerror
        raise LMCacheUnfit(f"cannot listen on {host}:{port} ({reason}); choose another with --host and --port") from error
    with listener:
        print(f"lpc: {host}:{listener.getsockname()[1]} lets the token through to {target}", file=sys.stderr, flush=True)
        _Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends in order; uvicorn's own raises the signal again afterwards, into whatever is still running."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        yield
