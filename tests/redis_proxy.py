"""A proxy in front of a real Redis that does not know some commands."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Collection, Iterator
from typing import BinaryIO


class RedisProxy(socketserver.ThreadingTCPServer):
    """Passes commands on one by one, and refuses some of them.

    Args:
        server: port of the Redis.
        unknown: commands that it does not know, in upper case.
        error: its answer to them; ``{}`` stands for the command. Empty: it hangs up.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, server: int, unknown: Collection[str], error: str = "ERR unknown command '{}'") -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.server, self.unknown, self.error = server, unknown, error
        self.refused: list[str] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}/0"


class _Session(socketserver.StreamRequestHandler):
    server: RedisProxy

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.server)) as upstream:
            answers = upstream.makefile("rb")
            while command := _message(self.rfile):
                name = command.split(b"\r\n")[2].decode().upper()
                if name not in self.server.unknown:
                    upstream.sendall(command)
                    self.wfile.write(_message(answers))
                    continue
                self.server.refused.append(name)
                if not self.server.error:
                    return
                self.wfile.write(f"-{self.server.error.format(name)}\r\n".encode())


def _message(stream: BinaryIO) -> bytes:
    """Return the next value of RESP; empty at the end."""
    line = stream.readline()
    if line[:1] == b"$" and line[1:2] != b"-":
        return line + stream.read(int(line[1:]) + 2)
    if line[:1] in b"*~%>" and line[:1] and line[1:2] != b"-":
        count = int(line[1:]) * (2 if line[:1] == b"%" else 1)
        return line + b"".join([_message(stream) for _ in range(count)])
    return line


@contextlib.contextmanager
def redis_proxy(server: int, *unknown: str, **fields: str) -> Iterator[RedisProxy]:
    with RedisProxy(server, unknown, **fields) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
