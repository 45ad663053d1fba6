"""The Dockerfile's images, the compose profiles and a pod, with real vLLM, in real containers: `make test-containers`.

What a registry would give is made here: the base image, Redis and Prometheus of Debian's packages, vLLM's image of .venv-engine
(its largest packages are mounted, not copied), the model of random weights. Grafana is left out: Debian has none.
"""

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lpc_apps.tiny_llama import BLOCK, build
from tests.containers.engines import IMAGE, Machine, ended, missing, pip_settings, run
from tests.dockerfile import ROOT
from tests.eventually import until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
SITE = Path(".venv-engine/lib/python3.11/site-packages").resolve()
IN_IMAGE = "/opt/venv/lib/python3.11/site-packages"
MOUNTED = [name for name in ("llvmlite", "nvidia", "torch", "triton", "vllm") if (SITE / name).is_dir()]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARGUMENTS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
SERVICES = {
    "cpu": ["predictor", "redis", "engine-a", "engine-b", "prometheus"],
    "gateway": ["predictor", "redis", "caches", "cache-redis", "engine-a", "engine-b", "gateway", "prometheus"],
}
OWNED = [("nobody", "nogroup", "/prometheus"), ("999", "1000", "/data")]
"""Folders of the images of Prometheus and Redis."""
PROMETHEUS = 'FROM lpc-test-python\nUSER nobody\nENTRYPOINT ["prometheus"]\n'
BASES = {
    "lpc-sidecar:0.1.0-cpu": "lpc-test-python",
    "lpc-engine:0.1.0-cpu": "lpc-test-vllm",
    "lpc-trainer:0.1.0": "lpc-test-python",
}
ENGINE = [
    *("--enforce-eager", "--served-model-name=tiny", f"--block-size={BLOCK}", "--num-gpu-blocks-override=512"),
    *(f"--kv-cache-memory-bytes={2**28}", "--max-num-seqs=8"),
]
SLOW_S = 1200
"""For engines to start and predictions to come: the machine may be busy."""
SIZE_MB = 500
HEALTH = ["/opt/lpc/bin/python", "/opt/lpc/healthcheck.py"]
READ = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"
PLAIN = "for name in ${!LPC_*}; do [ $name = LPC_MODELS ] || unset $name; done"
"""Removes the images' own settings, which a tutorial's reader does not have."""
# Random weights never come to an end of their own.
STOPS = {"stop_token_ids": list(range(0, 262, 2)), "min_tokens": 64, "max_tokens": 256, "temperature": 0}


@dataclass(frozen=True)
class Stack:
    """The images, and docker-compose over the checkout's copy."""

    machine: Machine
    source: Path
    sizes: dict[str, float]

    def compose(self, profile: str, *command: str, more: str = "docker-compose.yml") -> str:
        """Run docker-compose with this profile. ``more``: a file of the checkout that is read besides docker-compose.yml."""
        paths = dict.fromkeys((self.source / "docker-compose.yml", self.source / more, self.machine.folder / "override.yml"))
        files = [f"--file={path}" for path in paths]
        return self.machine.run(
            "docker-compose", "--project-name=lpc", *files, f"--profile={profile}", *command, cwd=self.source
        )

    def up(self, profile: str) -> None:
        self.compose(profile, "up", "--detach", "--no-build", *SERVICES[profile])
        until(lambda: all(answers(f"http://127.0.0.1:{port}/health") for port in (8001, 8002)), SLOW_S)

    def container(self, profile: str, service: str) -> str:
        return self.compose(profile, "ps", "--quiet", service).strip()

    def metrics(self, profile: str, service: str, port: int) -> dict[tuple[str, ...], float]:
        """Return what a sidecar or gateway, whose metrics no port publishes, counts."""
        return samples(self.compose(profile, "exec", "-T", service, "python", "-c", READ, f"http://127.0.0.1:{port}/metrics"))


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return metrics by name and label values, but for vLLM's two labels of the engine."""
    return {
        (one.name, *(value for label, value in one.labels.items() if label not in ("engine", "model_name"))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def engine_metrics(port: int) -> dict[tuple[str, ...], float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return samples(answer.read().decode())


def answered(port: int) -> float:
    return engine_metrics(port).get(("lpc_predictions_total", "answered"), 0)


def chat(port: int, messages: list[dict[str, str]], token: str = "none") -> str | None:
    """Send a conversation, append the answer to it; return what the cache says of it."""
    body = json.dumps({"model": "tiny", "messages": messages, **STOPS}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with urlopen(Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers), timeout=120) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        cache: str | None = answer.headers["x-lpc-cache"]
        return cache


def asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": f"{text} " * 40}


def converse(port: int, turns: int = 3) -> None:
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append(asked(f"question {turn} at {time.time_ns()}"))
        chat(port, messages)


def predicted(port: int, requests: float) -> None:
    """Send conversations until the engine has got so many predictions: the first may come before the sidecar is ready."""

    def enough() -> bool:
        converse(port)
        return answered(port) >= requests

    until(enough, SLOW_S)


def blocks_of(page: str) -> list[list[str]]:
    """Return the lines of a page's indented blocks: commands and outputs."""
    found: list[list[str]] = [[]]
    for line in (ROOT / "docs/tutorials" / page).read_text().splitlines():
        if line.startswith("    "):
            found[-1].append(line[4:])
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def differing(output: str, lines: list[str]) -> list[str]:
    """Return the lines of a page that an output lacks. Numbers, digests and the gaps of tables may differ."""

    def pattern(line: str) -> str:
        parts = re.split(r"(\b[0-9a-f]{12}\b|\d+(?:\.\d+)*|\s+)", line)
        return "".join(
            re.escape(part) if not number % 2 else r"\s+" if part.isspace() else r"[0-9a-f.]+"
            for number, part in enumerate(parts)
        )

    return [line for line in lines if not re.search(pattern(line), output.replace("│", " "))]


def prometheus(path: str, **parameters: str) -> Any:
    with urlopen(f"http://127.0.0.1:9091/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


def monitored(jobs: set[str]) -> None:
    """Wait until every target is scraped, and every rule and alert evaluates."""

    def up() -> bool:
        targets = prometheus("targets", state="active")["activeTargets"]
        return {t["labels"]["job"] for t in targets} == jobs and all(t["health"] == "up" for t in targets)

    def evaluated() -> bool:
        rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
        return bool(rules) and all(rule["health"] == "ok" for rule in rules)

    assert answers("http://127.0.0.1:9091/-/ready")
    until(up, SLOW_S)
    until(evaluated, SLOW_S)


def imported(machine: Machine, tool: str, name: str, tree: Path, *more: str, path: str = PATH) -> None:
    """Make an image of a tree of files and of what tar is asked to add."""
    parts = " ".join(f"'{part}'" for part in ("-C", str(tree), ".", *more))
    command = f"set -o pipefail; tar --create {parts} | {tool} import --change 'ENV PATH={path}' - {name}"
    machine.run("bash", "-ec", command)


def vllm_files(folder: Path, tree: Path) -> list[str]:
    """Add a virtual environment to the tree, as vLLM's own image has one; return tar's arguments for its packages."""
    programs = tree / "opt/venv/bin"
    programs.mkdir(parents=True)
    (programs.parent / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (programs / name).symlink_to("/usr/bin/python3")
    start = "from vllm.entrypoints.cli.main import main\n\nif __name__ == '__main__':\n    main()\n"
    (programs / "vllm").write_text(f"#!/opt/venv/bin/python\n{start}")
    (programs / "vllm").chmod(0o755)
    tools = folder / "tools"
    locked = ["--no-deps", "--require-hashes", "--requirement", "requirements/tools.txt"]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, *locked)
    shutil.copy(tools / "bin/uv", programs)
    left_out = [f"--exclude=site-packages/{name}" for name in (*MOUNTED, "*learned_prefix_cache*")]
    moved = f"--transform=flags=r;s,^site-packages,{IN_IMAGE[1:]},"
    return [*left_out, moved, "-C", str(SITE.parent), "site-packages"]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(Path(tempfile.mkdtemp(prefix="lpc-containers-")))
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def stack(machine: Machine, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Build every image with docker, the sidecar's also with podman; then move to the containers' own network."""
    folder = machine.folder
    source, tree = folder / "source", folder / "debian"
    tracked = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in (name for name in tracked if (ROOT / name).is_file()):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for authority in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(authority, source / "deploy/image/authorities")
    owned = [f'--customize-hook=install -d -o {owner} -g {group} "$1{of}"' for owner, group, of in OWNED]
    began = time.monotonic()
    machine.run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(IMAGE)}", *owned, "bookworm", tree)
    said("base of Debian's packages", began)
    sizes: dict[str, float] = {}
    (tree / "etc/pip.conf").write_text(pip_settings())
    with machine.dockerd(own_network=False):
        for tool in ("docker", "podman"):
            imported(machine, tool, "lpc-test-python", tree)
        vllm = vllm_files(folder, tree)
        imported(machine, "docker", "lpc-test-vllm", tree, *vllm, path=f"/opt/venv/bin:{PATH}")
        machine.run("docker", "build", "--tag=lpc-test-prometheus", "-", input=PROMETHEUS)
        arguments = [*(f"--build-arg={name}" for name in ARGUMENTS), "--build-arg=PYTHON_IMAGE=lpc-test-python"]
        builds = [("docker", "cpu", "lpc-sidecar:0.1.0-cpu"), ("docker", "engine", "lpc-engine:0.1.0-cpu")]
        builds += [("docker", "caches", "lpc-caches:0.1.0")]
        builds += [("docker", "trainer", "lpc-trainer:0.1.0"), ("podman", "cpu", "lpc-sidecar:0.1.0-cpu")]
        for tool, target, tag in builds:
            began = time.monotonic()
            base = ["--build-arg=ENGINE_IMAGE=lpc-test-vllm"] if target == "engine" else []
            machine.run(tool, "build", "--network=host", f"--target={target}", f"--tag={tag}", *arguments, *base, source)
            said(f"{tool} build --target {target}", began)
        for tag, base_of in BASES.items():
            tag_size, base_size = (int(machine.run("docker", "inspect", "--format={{.Size}}", n)) for n in (tag, base_of))
            sizes[tag] = (tag_size - base_size) / 1e6
    model = build(folder / "model", weights=True)
    made = Stack(machine, source, sizes)
    override(machine, source, model)
    machine.enter()
    with machine.dockerd(own_network=True):
        yield made
        for profile in SERVICES:
            if request.session.testsfailed:
                print(made.compose(profile, "logs", "--no-color", "--tail=40"))
            made.compose(profile, "down", "--volumes")


def said(what: str, began: float) -> None:
    print(f"\n== {what}: {time.monotonic() - began:.0f} s", flush=True)


def override(machine: Machine, source: Path, model: Path) -> None:
    """Write what this machine replaces of docker-compose.yml: the images of others, and the model."""
    command = ["docker-compose", "config"]
    services = yaml.safe_load(machine.run(*command, cwd=source))["services"]
    changed: dict[str, Any] = {"prometheus": {"image": "lpc-test-prometheus"}}
    for name in ("redis", "cache-redis"):
        # The test looks at the keys, which no client may.
        rights = services[name]["environment"]["RIGHTS"].replace("$$", "$")
        changed[name] = {"image": "lpc-test-python", "environment": {"RIGHTS": f"{rights} +keys"}}
    for name in ("engine-a", "engine-b"):
        volumes = [f"{SITE / package}:{IN_IMAGE}/{package}:ro" for package in MOUNTED]
        changed[name] = {
            "command": ["/model", *services[name]["command"][1:], *ENGINE],
            "volumes": [*volumes, f"{model}:/model:ro"],
            # One thread for a model of two layers: else two engines mostly wait for each other's threads.
            "environment": {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        }
    (machine.folder / "override.yml").write_text(yaml.safe_dump({"services": changed}))


def test_the_sidecars_image_is_small_and_says_what_is_wrong(stack: Stack) -> None:
    for name, megabytes in stack.sizes.items():
        print(f"\n== {name} adds {megabytes:.0f} MB to its base")
    assert stack.sizes["lpc-sidecar:0.1.0-cpu"] < SIZE_MB
    hardened = ["--rm", "--read-only", "--cap-drop=ALL", "--network=none"]
    assert "serve" in stack.machine.run("docker", "run", *hardened, "lpc-sidecar:0.1.0-cpu", "--help")
    assert "export" in stack.machine.run("docker", "run", *hardened, "lpc-trainer:0.1.0", "--help")
    with pytest.raises(AssertionError, match="exit 2"):
        stack.machine.run("docker", "run", *hardened, "lpc-sidecar:0.1.0-cpu", "no-such-command")


def test_engines_of_the_profile_cpu_are_predicted_for_pooled_and_watched(stack: Stack) -> None:
    stack.up("cpu")
    for port in (8001, 8002):
        predicted(port, 3)
        assert engine_metrics(port)["lpc_stock_fallback",] == 0
        assert engine_metrics(port)["lpc_store_healthy",] == 1
    ask = 'redis-cli --user engine --pass "$(cat /data/password)" --no-auth-warning keys "*"'
    assert until(lambda: stack.compose("cpu", "exec", "-T", "redis", "sh", "-c", ask).startswith("lpc:{"))
    monitored({"lpc-predictor", "vllm"})
    assert until(lambda: prometheus("query", query='sum(lpc_predictions_total{fate="answered"}) >= 6')["result"])


def test_the_demos_commands_print_what_the_tutorial_shows(stack: Stack) -> None:
    commands, counted = blocks_of("demo.md")[-2:]
    output = stack.machine.run("bash", "-ec", "\n".join(commands))
    assert '"role":"assistant"' in output and not differing(output, counted)


def test_predictions_go_on_after_a_restart_of_the_sidecar(stack: Stack) -> None:
    stack.compose("cpu", "stop", "predictor")
    container = stack.container("cpu", "predictor")
    assert ended(stack.machine, container) == 0
    converse(8001)
    before = answered(8001)
    stack.compose("cpu", "start", "predictor")
    (state,) = json.loads(stack.machine.run("docker", "inspect", container))
    since = state["State"]["StartedAt"]
    log = f"docker logs --timestamps --since {since} {container} 2>&1 | grep 'listening on' || true"
    ready = until(lambda: stack.machine.run("bash", "-c", log), SLOW_S).split()[0]
    seconds = (datetime.fromisoformat(ready[:26]) - datetime.fromisoformat(since[:26])).total_seconds()
    print(f"\n== the sidecar is ready {seconds:.1f} s after its start")
    predicted(8001, before + 3)


def test_learnt_state_outlives_the_containers(stack: Stack) -> None:
    def learnt() -> float:
        return stack.metrics("cpu", "predictor", 9090)["lpc_returns_learnt", "returns"]

    # The first conversations are not read: the sidecar does not have the engine's tokenizer yet.
    before = until(lambda: (converse(8001), learnt())[1], SLOW_S)
    stack.compose("cpu", "stop", "--timeout=60")
    codes = {service: ended(stack.machine, stack.container("cpu", service)) for service in SERVICES["cpu"]}
    print(f"\n== exit codes: {codes}")
    assert not any(code for service, code in codes.items() if not service.startswith("engine"))
    stack.compose("cpu", "down")
    stack.up("cpu")
    assert until(lambda: answers("http://127.0.0.1:9091/-/ready"))
    assert until(learnt) >= before
    predicted(8002, 3)


def test_a_nights_retraining_reads_the_label_log_and_shares_the_models_with_the_sidecar(stack: Stack) -> None:
    def compose(*command: str) -> str:
        return stack.compose("cpu", *command, more="deploy/compose/learning.yml")

    stack.compose("cpu", "stop", "predictor")
    compose("up", "--detach", "--no-build", "--no-deps", "predictor", "retrain")
    try:
        within = ["exec", "-T", "retrain"]
        assert "the live head" in until(
            lambda: compose(*within, "lpc", "train", "--from", "/labels", "--models", "/models"), SLOW_S
        )
        assert "served" in compose(*within, "lpc", "models", "list", "--models", "/models")
        # The trainer publishes where the sidecar reads, and cannot change the log.
        compose(*within, "sh", "-ec", "touch /models/written && rm /models/written && ! touch /labels/written")
        predicted(8001, answered(8001) + 3)
        labels = ["exec", "-T", "predictor", "sh", "-c"]
        compose(*labels, "touch /labels/written && rm /labels/written")
        compose("stop", "--timeout=60", "predictor", "retrain")
        assert ended(stack.machine, compose("ps", "--quiet", "predictor").strip()) == 0
    finally:
        compose("rm", "--stop", "--force", "predictor", "retrain")
        stack.compose("cpu", "up", "--detach", "--no-build", "predictor")


def test_the_dry_runs_commands_print_what_the_tutorial_shows(stack: Stack) -> None:
    """`pip install` is left out: the images' builds have installed the same packages."""
    machine = stack.machine
    stack.compose("cpu", "down", "--timeout=60")
    # The first two are the rehearsal's, which tests/engine/test_dry_run_page.py runs.
    serve, served, vllm, checked, doctor, found, report, _, _, thrashes, curl, counted = blocks_of("dry-run.md")[2:]
    options = " ".join([*(each for each in ENGINE if "model-name" not in each), "--served-model-name my-model tiny"])
    volumes = [f"--volume={SITE / package}:{IN_IMAGE}/{package}:ro" for package in MOUNTED]
    volumes.append(f"--volume={machine.folder / 'model'}:/my-model:ro")
    alone = ["--env=OMP_NUM_THREADS=1", "--env=VLLM_CPU_OMP_THREADS_BIND=nobind", "--shm-size=1g", "--workdir=/"]

    def start(name: str, image: str, command: str, *more: str) -> None:
        shared = ["--network=host", "--user=0", "--entrypoint=bash"]
        machine.run("docker", "run", "--detach", f"--name={name}", *shared, *more, image, "-c", f"{PLAIN}; {command}")

    def log(name: str) -> str:
        return machine.run("bash", "-c", f"docker logs {name} 2>&1")

    try:
        start("dry-sidecar", "lpc-sidecar:0.1.0-cpu", serve[-1])
        start("dry-engine", "lpc-engine:0.1.0-cpu", f"{vllm[-1]} {options}", *volumes, *alone)
        until(lambda: not differing(log("dry-sidecar"), served), SLOW_S)
        until(lambda: answers("http://127.0.0.1:8000/health"), SLOW_S)
        assert not differing(log("dry-engine"), checked[:1])
        predicted(8000, 3)
        until(lambda: not differing(log("dry-engine"), checked), SLOW_S)
        within = ["docker", "exec", "dry-engine", "bash", "-c"]
        assert not differing(machine.run(*within, f"{PLAIN}; {doctor[0]}"), found)
        assert not differing(machine.run("bash", "-c", curl[0]), counted)
        assert "lpc_repeated_prefill" in machine.run("bash", "-c", thrashes[0])
        assert "prompt tokens" in machine.run(*within, report[0])
    except AssertionError:
        print(log("dry-sidecar"), log("dry-engine"))
        raise
    finally:
        machine.run("docker", "rm", "--force", "dry-sidecar", "dry-engine")


def test_the_profile_gateway_gives_an_answer_again(stack: Stack) -> None:
    stack.up("gateway")
    token = stack.compose("gateway", "run", "-T", "--rm", "--entrypoint", "cat", "secrets", "/secrets/clients/app").strip()
    until(lambda: answers("http://127.0.0.1:8080/lpc/health"))

    def cached() -> bool:
        return stack.metrics("gateway", "gateway", 9095).get(("lpc_gateway_stores_total", "stored"), 0) >= 1

    question = asked("once")
    until(lambda: chat(8080, [question], token) and cached(), SLOW_S)
    # Look-ups that take too long are given up: a busy machine has some.
    again = [question]
    until(lambda: chat(8080, again[:1], token) == "exact", SLOW_S)
    chat(8080, again, token)
    until(lambda: chat(8080, [*again, asked(f"then, at {time.time_ns()}")], token) == "miss", SLOW_S)
    monitored({"lpc-predictor", "lpc-caches", "lpc-gateway", "vllm"})
    until(lambda: (chat(8080, [asked(f"at {time.time_ns()}")], token), answered(8001) + answered(8002))[1] >= 3, SLOW_S)
    stack.compose("gateway", "stop", "--timeout=60")
    for service in ("caches", "gateway", "cache-redis", "secrets"):
        assert ended(stack.machine, stack.container("gateway", service)) == 0


def test_podman_plays_the_smallest_overlay(stack: Stack) -> None:
    manifests = stack.machine.folder / "minimal.yaml"
    rendered = run(ROOT / ".venv/bin/kubectl", "kustomize", stack.source / "deploy/overlays/minimal")
    # Podman publishes a pod's ports, so that one machine takes one replica.
    manifests.write_text(rendered.replace("replicas: 2", "replicas: 1"))
    try:
        stack.machine.run("podman", "kube", "play", manifests)
        image = "localhost/lpc-sidecar:0.1.0-cpu"
        name = stack.machine.run("podman", "ps", "--format={{.Names}}", f"--filter=ancestor={image}").strip()
        ask = f"podman exec {name} {' '.join(HEALTH)} && echo healthy || true"
        until(lambda: "healthy" in stack.machine.run("bash", "-c", ask), SLOW_S)
    finally:
        stack.machine.run("podman", "kube", "down", manifests)
