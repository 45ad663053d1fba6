"""A TCP port to listen on, taken before anything else begins."""

import os
import socket
from typing import Final

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError, whose ``strerror`` is the reason and no more."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG)
    except OSError as error:
        # Python adds the address in words of its own. A name that has no address comes with a number below 0.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise OSError(error.errno, reason) from error
