"""A TCP relay at one address to a target that may change: what a Service is to the pods behind it."""

import contextlib
import socket
import threading


class Relay:
    """Passes each new connection on to `target`, host and port; with none it hangs up.

    Attributes:
        accepted: number of connections so far.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        self.accepted = 0
        self._era = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def silence(self) -> None:
        """Pass on nothing more of the connections that are open, and keep them open: a firewall that has lost their state."""
        self._era += 1

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self.target is None:
                return
            with socket.create_connection(self.target, 5) as server:
                era = self._era
                back = threading.Thread(target=self._pass, args=(server, client, era), daemon=True)
                back.start()
                self._pass(client, server, era)
                back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, era: int) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while data := source.recv(1 << 16):
                if era == self._era:
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
