"""A real Redis Cluster on loopback."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testing import Unavailable
from testing.processes import RedisServer, free_port

FORMS_S: Final = 300.0
"""Time limit of its forming. It is for servers that hang."""


def node(folder: Path) -> RedisServer:
    """Return a server that may become a node; it is not started."""
    return RedisServer(folder, cluster_enabled="yes", cluster_port=str(free_port()), cluster_node_timeout="2000")


def form(nodes: Sequence[RedisServer]) -> None:
    """Make running servers the primaries of one Cluster. Raises Unavailable if that takes longer than FORMS_S."""
    addresses = [f"127.0.0.1:{server.port}" for server in nodes]
    command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
    subprocess.run(command, check=True, capture_output=True, timeout=FORMS_S)
    until = time.monotonic() + FORMS_S
    for server in nodes:
        with contextlib.closing(server.client()) as client:
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":  # type: ignore[no-untyped-call]
                if time.monotonic() > until:
                    raise Unavailable("the Redis Cluster did not form")
                time.sleep(0.05)


@contextlib.contextmanager
def cluster_of(folder: Path, primaries: int = 3) -> Iterator[list[RedisServer]]:
    """Run a Cluster of so many primaries, without replicas."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node(folder / str(number))) for number in range(primaries)]
        form(nodes)
        yield nodes
