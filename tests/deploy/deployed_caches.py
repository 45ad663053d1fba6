"""Response caches as a deployment renders them: they, their Redis and the gateway run here as processes, on an address that is
not loopback, with the manifests' own commands, settings and secrets. An engine is a double over real HTTP."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testing.processes import Server, free_port
from tests.deploy.test_compose import configured
from tests.deploy.test_first_prediction import environment_of
from tests.deploy.test_kubernetes import Object, containers, kustomized, pods, render, secret_data
from tests.dockerfile import ROOT, stages
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import patiently

IMAGE = stages()[1]["caches"]
CLIENT = "app"
"""Of the gateway."""


@dataclass(frozen=True)
class Part:
    """A container whose folders lie in one of this machine."""

    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class Rendered:
    """What a deployment comes to. ``client``: the token of a client of the gateway."""

    redis: Part
    caches: Part
    gateway: Part
    client: str


@dataclass(frozen=True)
class Deployed:
    """A deployment that runs. ``settings``: of the gateway."""

    caches: str
    gateway: str
    redis: int
    settings: dict[str, str]
    client: str
    double: EngineDouble

    @property
    def authority(self) -> bytes:
        return Path(self.settings["LPC_PREDICTOR_CA"]).read_bytes()

    @property
    def token(self) -> str:
        """The token of the gateway."""
        return Path(self.settings["LPC_PREDICTOR_TOKEN_FILE"]).read_text().strip()


def own_address() -> str | None:
    """Return an address of this machine that others can reach; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


def placed(part: Part, root: Path, mounts: Mapping[str, Path], *, as_folders: bool = False) -> Part:
    """Return a container's command and settings with its mounts below a folder, where they are links.

    Args:
        as_folders: the places are folders and the empty sources links, since `lpc secrets` writes into no link.
    """
    for inside, source in mounts.items():
        place = root / inside.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if as_folders:
            source.rmdir()
            place.mkdir()
            source, place = place, source
        place.symlink_to(source, target_is_directory=True)
    tops = "|".join(sorted({re.escape(parent) for mount in mounts for parent in _with_parents(mount)}, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./])({tops})(?![\w.-])") if mounts else re.compile("(?!)")

    def here(text: str) -> str:
        return pattern.sub(lambda match: f"{root}{match[1]}", text)

    return Part([here(word) for word in part.command], {name: here(value) for name, value in part.environment.items()})


def _with_parents(mount: str) -> Iterator[str]:
    yield mount
    yield from (str(parent) for parent in Path(mount).parents if str(parent) not in {"/", "/run", "/etc"})


def from_compose(folder: Path, models: Path, address: str) -> Rendered:
    """Run the profile's one-shot service and return its other parts."""
    services = {name: one for name, one in configured().items() if "gateway" in one.get("profiles", [])}

    def part(name: str, *, image: bool = True, writes: bool = False) -> Part:
        service = services[name]
        mounts = {} if writes else {"/models": models}
        for volume in service.get("volumes", []):
            source, inside = volume.split(":")[:2]
            mounts[inside] = folder / "volumes" / source
        for entry in service.get("tmpfs", []):
            mounts[entry.partition(":")[0]] = folder / name / "tmpfs" / entry.partition(":")[0].strip("/")
        for source in mounts.values():
            source.mkdir(parents=True, exist_ok=True)
        settings = {**(IMAGE.env() if image else {}), **service.get("environment", {})}
        settings.pop("PATH", None)
        command = [word.replace("$$", "$") for word in service.get("command", IMAGE.command("CMD"))]
        return placed(
            Part(command, {key: str(value) for key, value in settings.items()}), folder / name, mounts, as_folders=writes
        )

    secrets = part("secrets", writes=True)
    command = [sys.executable, "-m", "lpc_cli", *secrets.command, "--name", address]
    # As `docker compose up` does each time.
    for _ in range(2):
        subprocess.run(command, env=_environment(secrets), check=True, capture_output=True)
    client = (folder / "volumes/client-secrets" / CLIENT).read_text()
    return Rendered(part("cache-redis", image=False), part("caches"), part("gateway"), client)


def from_objects(objects: list[Object], folder: Path, models: Path, client: str) -> Rendered:
    """Return the parts of a cluster's objects."""

    def written(name: str, into: Path, items: list[Object] | None = None) -> Path:
        into.mkdir(parents=True)
        data = secret_data(objects, name)
        for key, path in {one["key"]: one["path"] for one in items}.items() if items else zip(data, data, strict=True):
            (into / path).write_bytes(data[key])
        return into

    def part(name: str) -> Part:
        (_, pod) = next(found for found in pods(objects) if found[0] == f"Deployment {name}")
        (container,) = containers(pod)
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {"/models": models}
        for mount in container["volumeMounts"]:
            place = folder / name / "volumes" / mount["name"]
            found = volumes[mount["name"]].get("secret")
            if found is None:
                place.mkdir(parents=True)
            else:
                written(found["secretName"], place, found.get("items"))
            mounts[mount["mountPath"]] = place
        settings = {} if name == "lpc-response-cache" else IMAGE.env()
        settings |= environment_of(container, objects)
        settings.pop("PATH", None)
        command = [*container.get("command", []), *container["args"]]
        return placed(Part(command, settings), folder / name, mounts)

    return Rendered(part("lpc-response-cache"), part("lpc-caches"), part("lpc-gateway"), client)


def from_kustomize(folder: Path, models: Path, address: str) -> Rendered:
    """As docs/how-to/deploy.md says: the files of `lpc secrets`, then the overlay."""
    tree = kustomized(folder / "tree", "--name", address)
    secrets = tree / "overlays/gateway/secrets"
    return from_objects(render(tree / "overlays/gateway"), folder, models, (secrets / "clients" / CLIENT).read_text())


KINDS: dict[str, Callable[[Path, Path, str], Rendered]] = {
    "compose": from_compose,
    "kustomize": from_kustomize,
}
"""The chart's objects are the overlay's: `test_helm.py`."""


class Process(Server):
    """A part as a process that says when it listens."""

    def __init__(self, name: str, folder: Path, command: list[str], part: Part) -> None:
        super().__init__(folder / f"{name}.log", command, _environment(part))

    def _serves(self) -> bool:
        return "listening on " in self._said() or "Ready to accept connections" in self._said()


def _environment(part: Part) -> dict[str, str]:
    ours = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**ours, "PYTHONPATH": str(ROOT), **part.environment}


@contextlib.contextmanager
def deployed(kind: str, folder: Path, models: Path, address: str) -> Iterator[Deployed]:
    """Run a deployment. Ports are free ones, and hosts are replaced by this machine's address; nothing else is changed."""
    rendered = KINDS[kind](folder, models, address)
    redis_port, port, http = (free_port() for _ in range(3))
    shell = [*rendered.redis.command[:-1], f"{rendered.redis.command[-1].rstrip()} --port {redis_port} --bind 127.0.0.1"]
    caches, gateway = rendered.caches.environment, rendered.gateway.environment
    gateway["LPC_PREDICTOR_ADDRESS"] = f"{address}:{port}"
    assert caches["LPC_HOST"] == "::"
    # Redis has another port here, and the machine may be busy.
    caches |= {
        "LPC_CACHE_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "LPC_CACHE_REDIS_TIMEOUT_S": str(min(patiently(1), 10)),
    }
    caches |= {"LPC_PORT": str(port), "LPC_METRICS_PORT": ""}
    gateway |= {"LPC_PORT": str(http), "LPC_METRICS_PORT": "", "LPC_GATEWAY_LOOKUP_TIMEOUT_S": "10"}
    lpc = [sys.executable, "-m", "lpc_cli"]
    with contextlib.ExitStack() as stack:
        double = stack.enter_context(_engine())
        gateway["LPC_GATEWAY_ENGINES"] = double.url
        stack.enter_context(Process("redis", folder, shell, rendered.redis))
        stack.enter_context(Process("caches", folder, [*lpc, *rendered.caches.command], rendered.caches))
        stack.enter_context(Process("gateway", folder, [*lpc, *rendered.gateway.command], rendered.gateway))
        yield Deployed(
            caches=f"{address}:{port}",
            gateway=f"http://{address}:{http}",
            redis=redis_port,
            settings=gateway,
            client=rendered.client,
            double=double,
        )


@contextlib.contextmanager
def _engine() -> Iterator[EngineDouble]:
    """Serve a double from a thread."""
    double, up, loop = EngineDouble(), threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with serve_double(double):
            up.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert up.wait(patiently())
        yield double
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(patiently())
        loop.close()
