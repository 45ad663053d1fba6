"""The redis-cluster overlay's start script on real nodes: an engine's user can store, and do nothing else."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from eviction_client.settings import ClientSettings
from eviction_client.stores import open_store
from eviction_client.stores.namespace import Namespace
from lpc.bench.processes import free_port
from tests.deploy.test_kubernetes import DEPLOY, named, rendered

OVERLAY = DEPLOY / "overlays/redis-cluster"


def cluster_port() -> int:
    """A port whose bus port, 10,000 above, exists."""
    while (port := free_port()) > 55_000:
        pass
    return port


@contextmanager
def node(folder: Path, password: str) -> Iterator[int]:
    """Run a node by the overlay's script, as its container does."""
    port = cluster_port()
    for name in ("run", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "redis.conf").write_text(f"{(OVERLAY / 'redis.conf').read_text()}bind 127.0.0.1\n")
    env = {"PATH": os.environ["PATH"], "PASSWORD": password, "ADMIN_PASSWORD": "adm1n", "POD_IP": "127.0.0.1"}
    env |= {"RUN": str(folder / "run"), "DATA": str(folder / "data"), "CONFIG": str(folder / "redis.conf"), "PORT": str(port)}
    process = subprocess.Popen(["sh", OVERLAY / "start.sh"], env=env, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


def admin(port: int, *command: str) -> str:
    done = subprocess.run(
        ["redis-cli", "-p", str(port), "--user", "admin", *command],
        env={"PATH": os.environ["PATH"], "REDISCLI_AUTH": "adm1n"},
        capture_output=True,
        text=True,
    )
    return done.stdout


def wait_for(port: int, word: str, *command: str) -> None:
    deadline = time.monotonic() + 40
    while word not in admin(port, *command):
        assert time.monotonic() < deadline, admin(port, *command)
        time.sleep(0.2)


def test_the_passwords_of_the_repository_are_refused(tmp_path: Path) -> None:
    with node(tmp_path, "replace-me") as port, contextlib.closing(redis.Redis(port=port)) as probe:
        time.sleep(0.5)
        with pytest.raises(redis.ConnectionError):
            probe.ping()


def test_three_nodes_form_a_cluster_in_which_an_engine_stores(tmp_path: Path) -> None:
    data = named(rendered("redis-cluster"), "ConfigMap", "lpc-engine")["data"]
    namespace = Namespace(hash_algorithm="sha256_cbor", hash_seed="0", block_size=16, model="m")
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(node(tmp_path / str(i), "s3cret")) for i in range(3)]
        for port in ports:
            wait_for(port, "PONG", "ping")
        made = admin(ports[0], "--cluster", "create", *(f"127.0.0.1:{port}" for port in ports), "--cluster-yes")
        assert "All 16384 slots covered" in made
        for port in ports:
            wait_for(port, "cluster_state:ok", "cluster", "info")
        settings = ClientSettings(
            redis_url=f"redis://engine:s3cret@127.0.0.1:{ports[0]}/0",  # type: ignore[arg-type]
            redis_cluster=data["LPC_REDIS_CLUSTER"],
            redis_shards=data["LPC_REDIS_SHARDS"],
        )
        with contextlib.closing(open_store(settings, namespace)) as store:
            store.check()
        with contextlib.closing(redis.Redis(port=ports[0], username="engine", password="s3cret")) as engine:
            for forbidden in (("FLUSHALL",), ("CLUSTER", "RESET"), ("CONFIG", "GET", "*"), ("SHUTDOWN",)):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    engine.execute_command(*forbidden)
