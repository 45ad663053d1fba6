"""The redis-cluster overlay's scripts on real nodes: they form a cluster, and mend it when all addresses have changed."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from eviction_client.errors import StoreError
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, open_store
from eviction_client.stores.namespace import Namespace
from testing.processes import CLUSTER_BUS, free_port
from tests.deploy.test_kubernetes import DEPLOY, containers, named, rendered
from tests.eventually import patiently, until
from tests.redis_stores import A, ends, record
from tests.relay import Relay

OVERLAY = DEPLOY / "overlays/redis-cluster"
PASSWORD, ADMIN = r's3cret "/#?%@ \ x', r'adm1n "/#?%@ \ y'


@contextmanager
def node(folder: Path, password: str, address: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    """Run a node by the overlay's script, as its container does; on a folder that is kept, as its volume is."""
    port = free_port(CLUSTER_BUS)
    for name in ("run", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "redis.conf").write_text(f"{(OVERLAY / 'redis.conf').read_text()}bind {address}\n")
    env = {"PATH": os.environ["PATH"], "PASSWORD": password, "ADMIN_PASSWORD": ADMIN, "POD_IP": address}
    env |= {"RUN": str(folder / "run"), "DATA": str(folder / "data"), "CONFIG": str(folder / "redis.conf"), "PORT": str(port)}
    process = subprocess.Popen(["sh", OVERLAY / "start.sh"], env=env, stdout=subprocess.DEVNULL)
    try:
        yield address, port
    finally:
        process.terminate()
        process.wait(patiently())


@contextmanager
def forming(folder: Path, nodes: list[tuple[str, int]]) -> Iterator[Callable[[], bool]]:
    """Run the very command and script of the Deployment that the overlay renders; yield whether it calls itself ready."""
    objects = rendered("redis-cluster")
    deployment = named(objects, "Deployment", "lpc-redis-form")
    (container,) = containers(deployment["spec"]["template"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in named(objects, "ConfigMap", "lpc-redis-form")["data"].items():
        (folder / name).write_text(text)
    command = [word.replace("/etc/form", str(folder)) for word in container["command"]]
    given = {variable["name"] for variable in container["env"]}
    env = {"NODES": " ".join(f"{host}:{port}" for host, port in nodes), "REPLICAS": "0", "EVERY": "1", "RUN": str(folder)}
    env |= {"REDISCLI_AUTH": ADMIN, "SET": "", "SERVICE": ""}  # of which Kubernetes makes NODES
    assert set(env) == given
    probe = [word.replace("/run/form", str(folder)) for word in container["readinessProbe"]["exec"]["command"]]
    process = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **env})
    try:
        yield lambda: subprocess.run(probe).returncode == 0
    finally:
        process.terminate()
        assert process.wait(patiently()) == 0


def stored(store: object) -> bool:
    """Whether the store's own check passes; a Cluster that is not whole yet, or a slow machine, is away and nothing worse."""
    try:
        store.check()  # type: ignore[attr-defined]
    except StoreError:
        return False
    return True


@pytest.mark.nightly
def test_the_cluster_is_whole_after_a_restart_under_other_addresses(tmp_path: Path) -> None:
    """As pods that all restart: the volumes stay, every address changes, and the engine keeps the Service's."""
    data = named(rendered("redis-cluster"), "ConfigMap", "lpc-engine")["data"]
    namespace = Namespace(hash_algorithm="sha256_cbor", hash_seed="0", block_size=16, model="m")
    blocks = [BlockHash(n.to_bytes(4, "big") * 8) for n in range(200)]
    folders = [tmp_path / str(n) for n in range(3)]
    with contextlib.closing(Relay()) as service, contextlib.ExitStack() as always:
        settings = ClientSettings(
            redis_url=f"redis://engine:{quote(PASSWORD, safe='')}@127.0.0.1:{service.port}/0",  # type: ignore[arg-type]
            redis_cluster=data["LPC_REDIS_CLUSTER"],
            redis_shards=data["LPC_REDIS_SHARDS"],
        )
        with contextlib.ExitStack() as first:
            nodes = [first.enter_context(node(folder, PASSWORD)) for folder in folders]
            service.target = nodes[0]
            whole = first.enter_context(forming(tmp_path / "form", nodes))
            assert until(whole)
            store = always.enter_context(contextlib.closing(open_store(settings, namespace)))
            assert until(lambda: stored(store))
            record(store, A, blocks, 1.0)
            assert store.flush()
            with contextlib.closing(redis.Redis(port=nodes[0][1], username="engine", password=PASSWORD)) as engine:
                for forbidden in (("FLUSHALL",), ("CLUSTER", "RESET"), ("CONFIG", "GET", "*"), ("SHUTDOWN",)):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        engine.execute_command(*forbidden)
        with contextlib.ExitStack() as second:
            nodes = [second.enter_context(node(folder, PASSWORD, f"127.0.0.{n + 2}")) for n, folder in enumerate(folders)]
            service.target = nodes[1]
            record(store, A, blocks, 2.0)
            for at in nodes:
                assert until(lambda at=at: "cluster_state" in admin(*at, "cluster", "info"))
                assert "cluster_state:fail" in admin(*at, "cluster", "info")
            whole = second.enter_context(forming(tmp_path / "again", nodes))
            assert until(whole)
            for at in nodes:
                assert until(lambda at=at: "cluster_state:ok" in admin(*at, "cluster", "info"))
            assert until(store.flush)
            assert ends(store, blocks) == [2.0] * len(blocks)
            assert store.dropped == 0


def admin(host: str, port: int, *command: str) -> str:
    done = subprocess.run(
        ["redis-cli", "-h", host, "-p", str(port), "--user", "admin", *command],
        env={"PATH": os.environ["PATH"], "REDISCLI_AUTH": ADMIN},
        capture_output=True,
        text=True,
    )
    return done.stdout
