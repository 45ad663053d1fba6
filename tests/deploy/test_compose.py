"""docker-compose.yml against a compose implementation's own schema, and against what image, settings and Prometheus say."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from eviction_client.settings import ClientSettings
from predictor_service.settings import ServiceSettings
from response_cache.gateway.settings import GatewaySettings
from response_cache.service.settings import CacheServerSettings
from testing.processes import free_port
from tests.deploy.test_kubernetes import check_rights
from tests.dockerfile import ROOT, stages
from tests.eventually import patiently, until

PROFILES = ("cpu", "gpu", "two-gpus", "gateway")
LEARNING = "deploy/compose/learning.yml"
Service = dict[str, Any]


@cache
def configured(*files: str, **variables: str) -> dict[str, Service]:
    """Return the services as docker-compose reads them: anchors merged, variables replaced, its schema satisfied.

    Args:
        files: that are read besides docker-compose.yml.
    """
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **variables}
    named = [f"--file={file}" for file in ("docker-compose.yml", *files)]
    done = subprocess.run(["docker-compose", *named, "config"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert isinstance(services, dict)
    return services


@cache
def profile(name: str, *files: str) -> dict[str, Service]:
    return {key: service for key, service in configured(*files).items() if name in service.get("profiles", [name])}


def shell(text: str, **folders: Path) -> str:
    """Return the shell lines of a service as its container runs them, with folders of its own in place of the image's."""
    text = text.replace("$$", "$")
    for name, folder in folders.items():
        text = text.replace(f"/{name}", str(folder))
    return text


@pytest.mark.parametrize(("name", "engines"), [("cpu", 2), ("gpu", 1), ("two-gpus", 2), ("gateway", 2)])
def test_a_profile_has_its_engines_a_sidecar_a_redis_and_the_monitoring(name: str, engines: int) -> None:
    kinds = sorted(re.sub(r"-(gpu|a|b|a-gpu|b-gpu)$", "", service) for service in profile(name))
    more = ["cache-redis", "caches", "gateway", "secrets", "warm"] if name == "gateway" else []
    assert kinds == sorted(["engine"] * engines + ["grafana", "predictor", "prometheus", "redis", *more])


@pytest.mark.parametrize("name", PROFILES)
def test_an_image_is_built_by_one_service_and_pulled_by_none(name: str) -> None:
    services = profile(name)
    builders = [service["image"] for service in services.values() if "build" in service]
    assert len(builders) == len(set(builders))
    for service in services.values():
        if service["image"].startswith("lpc-") and "build" not in service:
            assert service["pull_policy"] == "never" and service["image"] in builders


def test_the_index_of_the_packages_reaches_every_build() -> None:
    chosen = {"PIP_INDEX_URL": "https://one.example/simple", "PIP_EXTRA_INDEX_URL": "https://two.example/simple"}
    builds = [service["build"]["args"] for service in configured(**chosen).values() if "build" in service]
    assert len(builds) == 5
    assert chosen.items() <= configured(LEARNING, **chosen)["retrain"]["build"]["args"].items()
    assert all(chosen.items() <= arguments.items() for arguments in builds)


@pytest.mark.parametrize("name", PROFILES)
def test_the_sidecar_answers_on_the_hosts_loopback_and_keeps_its_cache(name: str) -> None:
    (sidecar,) = [service for key, service in profile(name).items() if key.startswith("predictor")]
    image = stages()[1][sidecar["build"]["target"]]
    assert [str(port).removesuffix("/tcp") for port in sidecar["ports"]] == ["127.0.0.1:50051:50051"]
    assert "127.0.0.1:50051" in (ROOT / "README.md").read_text()
    (folder,) = (volume.split(":")[1] for volume in sidecar["volumes"] if volume.startswith("predictor-cache:"))
    kept = {**image.env(), **sidecar["environment"]}
    assert all(f"{kept[name]}/".startswith(f"{folder}/") for name in ("HF_HOME", "LPC_STATE"))
    assert not any(entry.partition(":")[0] in {folder, "/"} for entry in sidecar["tmpfs"])


@pytest.mark.parametrize("name", PROFILES)
def test_every_address_that_is_named_is_a_services(name: str) -> None:
    services = profile(name)
    names = set(services)
    for service in services.values():
        names |= set(((service.get("networks") or {}).get("default") or {}).get("aliases", []))
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = {t for job in config["scrape_configs"] for s in job.get("static_configs", []) for t in s["targets"]}
    looked_up = {n for job in config["scrape_configs"] for s in job.get("dns_sd_configs", []) for n in s["names"]}
    assert looked_up & names == {alias for alias in names if re.fullmatch("engine-[ab]|gateway|caches", alias)} != set()
    addresses = {target.partition(":")[0] for target in targets}
    for service in services.values():
        environment = service.get("environment", {})
        addresses |= {environment[key].partition(":")[0] for key in ("LPC_PREDICTOR_ADDRESS",) if key in environment}
        addresses |= {
            re.sub(r"redis://(?:[^@]*@)?([^:]+):.*", r"\1", url) for key, url in environment.items() if key == "LPC_REDIS_URL"
        }
        assert set(service.get("depends_on", {})) <= set(services)
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    addresses |= {re.sub(r"http://([^:]+):.*", r"\1", entry["url"]) for entry in source["datasources"]}
    assert addresses <= names
    assert {"predictor", "redis", "prometheus"} <= addresses


@pytest.mark.parametrize("name", PROFILES)
def test_engines_use_the_plug_in_and_settings_that_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, service in profile(name).items():
        ours = {k: v for k, v in service.get("environment", {}).items() if k.startswith("LPC_")}
        kinds: dict[str, type[BaseSettings]] = {
            "engine": ClientSettings,
            "predictor": ServiceSettings,
            "gateway": GatewaySettings,
            "caches": CacheServerSettings,
        }
        settings = kinds.get(key.partition("-")[0])
        assert settings is not None or not ours
        if settings is not None:
            reaches_sidecar = set(ClientSettings.model_fields) if key == "gateway" else set()
            assert {k.removeprefix("LPC_").lower() for k in ours} <= set(settings.model_fields) | reaches_sidecar
            with monkeypatch.context() as patched:
                for k, v in ours.items():
                    patched.setenv(k, v)
                settings()
        if key.startswith("engine"):
            assert "--scheduler-cls=eviction_client.engines.vllm.LearnedScheduler" in service["command"]
            # Otherwise the engines' block hashes differ, and shared scores mean nothing.
            assert service["environment"]["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("name", PROFILES)
def test_every_build_target_and_file_exists(name: str) -> None:
    arguments, targets = stages()
    # PRECISION belongs to a stage.
    known = set(arguments) | {line.partition("=")[0] for stage in targets.values() for line in stage.texts("ARG")}
    for service in profile(name).values():
        if "build" in service:
            assert service["build"]["target"] in targets
            assert set(service["build"]["args"]) <= known
        else:
            assert re.search(r":[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?$", service["image"])
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(("/", ".")) or Path(source).exists()


@pytest.mark.parametrize("name", PROFILES)
def test_only_loopback_is_published_and_only_the_engines_image_may_write(name: str) -> None:
    for key, service in profile(name).items():
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:")
        if not key.startswith("engine"):
            assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


def test_each_process_mounts_its_own_secrets_and_no_others() -> None:
    def mounted(service: Service) -> set[str]:
        return {volume.partition(":")[0] for volume in service.get("volumes", [])}

    secret = {
        "caches-secrets",
        "gateway-secrets",
        "client-secrets",
        "redis-password",
        "cache-redis-password",
    }
    found = {name: mounted(service) & secret for name, service in profile("gateway").items()}
    assert {name: volumes for name, volumes in found.items() if volumes} == {
        "secrets": {"caches-secrets", "gateway-secrets", "client-secrets"},
        "caches": {"caches-secrets", "cache-redis-password"},
        "gateway": {"gateway-secrets"},
        "warm": {"client-secrets"},
        "engine-a": {"redis-password"},
        "engine-b": {"redis-password"},
        "redis": {"redis-password"},
        "cache-redis": {"cache-redis-password"},
    }
    # A volume that is new takes the owner of the image's folder: the image's user writes there.
    (folders,) = (text for text in stages()[1]["cpu"].texts("RUN") if "install -d" in text)
    for volume in profile("gateway")["secrets"]["volumes"]:
        assert f" {volume.split(':')[1]}" in folders and "-m 0700 -o 10001 -g 10001" in folders


def test_the_engines_redis_makes_a_password_once_and_lets_engines_do_what_kubernetes_does(tmp_path: Path) -> None:
    """Runs the service's own shell lines twice, with its folders below another."""
    service = configured()["redis"]
    text = shell(service["command"][-1], data=tmp_path).replace("/tmp/users", f"{tmp_path}/users")
    port = free_port()
    command = [*service["command"][:-1], f"{text.rstrip()} --port {port} --bind 127.0.0.1"]
    passwords = []
    for _ in range(2):
        server = subprocess.Popen(command, env={**os.environ, **service["environment"]}, stdout=subprocess.DEVNULL)
        try:
            until((tmp_path / "password").exists)
            passwords.append((tmp_path / "password").read_text().strip())
            check_rights(port, passwords[0])
            probe = service["healthcheck"]["test"][1:]
            done = subprocess.run([probe[0], "-p", str(port), *probe[1:]], capture_output=True, text=True)
            assert done.stdout.strip() == "PONG"
        finally:
            server.terminate()
            server.wait(patiently())
    assert passwords[0] == passwords[1] and len(passwords[0]) == 64
    engine = profile("gateway")["engine-a"]
    folder = {volume.split(":")[0]: volume.split(":")[1] for volume in engine["volumes"]}["redis-password"]
    assert engine["environment"]["LPC_REDIS_PASSWORD_FILE"] == f"{folder}/password"


@pytest.mark.parametrize("name", PROFILES)
def test_learning_adds_a_label_log_a_shared_model_and_a_nightly_job_without_network(name: str) -> None:
    before, now = profile(name), profile(name, LEARNING)
    assert set(now) - set(before) == {"retrain"}
    (key,) = (key for key in now if key.startswith("predictor"))
    sidecar, retrain = now[key], now["retrain"]
    assert {k: v for k, v in sidecar["environment"].items() if k in before[key]["environment"]} == before[key]["environment"]
    mounted = {part.split(":")[0]: part.split(":")[1] for part in sidecar["volumes"]}
    assert mounted["labels"] == sidecar["environment"]["LPC_LABEL_LOG"]
    assert mounted["models"] == sidecar["environment"]["LPC_MODELS"]
    assert sorted(part.removesuffix(":rw") for part in retrain["volumes"]) == ["labels:/labels:ro", "models:/models"]
    assert retrain["network_mode"] == "none" and retrain["read_only"] is True and retrain["cap_drop"] == ["ALL"]
    # A volume that is new takes the owner of the folder of the image that mounts it first.
    for target, folders in ((sidecar["build"]["target"], mounted.values()), ("trainer", ["/labels", "/models"])):
        (made,) = (text for text in stages()[1][target].texts("RUN") if "install -d" in text)
        assert all(f" {folder}" in made for folder in folders) and "-o 10001 -g 10001" in made


def test_the_sidecar_of_learning_starts_with_the_images_models_and_keeps_those_of_the_volume(tmp_path: Path) -> None:
    """Runs the service's own shell lines twice, with its folders below another."""
    image, volume, tools = (tmp_path / name for name in ("image", "volume", "tools"))
    for folder in (image / "default" / "1", image / "e5-small" / "1", volume / "default" / "7", volume / ".e5-small", tools):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(str(folder.relative_to(tmp_path)))
    (tools / "lpc").write_text('#!/bin/sh\necho "$@"\n')
    (tools / "lpc").chmod(0o755)
    service = profile("cpu", LEARNING)["predictor"]
    text = shell(service["command"][-1], models=image, learned=volume)
    for _ in range(2):
        done = subprocess.run(
            [*service["entrypoint"], text],
            env={"PATH": f"{tools}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "serve\n", "")
        assert sorted(str(path.relative_to(volume)) for path in volume.glob("*/*")) == ["default/7", "e5-small/1"]


def test_retraining_runs_once_a_night_goes_on_after_a_failure_and_then_prunes(tmp_path: Path) -> None:
    """Runs the service's own shell lines. `sleep` notes its argument and ends the loop in the fourth night."""
    log = tmp_path / "log"
    scripts = {
        "date": f'[ $# = 1 ] && cat {tmp_path}/now || exec /bin/date "$@"',
        "sleep": f'echo "sleep $1" >> {log}; [ $(grep -c sleep {log}) -lt 4 ]',
        "lpc": f'echo "lpc $*" >> {log}; [ $(grep -c "lpc train" {log}) != 2 ]',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    service = configured(LEARNING, RETRAIN_AT="04:00")["retrain"]
    for now, wait in ((3 * 3600 + 50 * 60, 600), (4 * 3600, 86400), (4 * 3600 + 1, 86399)):
        log.write_text("")
        (tmp_path / "now").write_text(str(20_000 * 86_400 + now))
        done = subprocess.run(
            [*service["entrypoint"], shell(service["command"][-1])],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **service["environment"]},
            capture_output=True,
            text=True,
        )
        train, prune = "lpc train --from /labels --models /models", "lpc models prune --models /models --keep 10"
        assert done.stderr == ""
        sleep = f"sleep {wait}"
        assert log.read_text().splitlines() == [sleep, train, prune, sleep, train, sleep, train, prune, sleep]


def test_the_sidecar_shares_the_engines_gpu_within_a_bound_and_falls_back_to_the_cpu() -> None:
    gpu = profile("gpu")
    (sidecar,) = (service for key, service in gpu.items() if key.startswith("predictor"))
    devices = {
        key: service["deploy"]["resources"]["reservations"]["devices"] for key, service in gpu.items() if "deploy" in service
    }
    assert devices["predictor-gpu"] == devices["engine-a-gpu"]
    assert sidecar["environment"]["LPC_PROVIDER"] == "auto" and int(sidecar["environment"]["LPC_CUDA_MEMORY_MIB"]) <= 512
    assert configured(SIDECAR_PROVIDER="cpu")["predictor-gpu"]["environment"]["LPC_PROVIDER"] == "cpu"
    (share,) = (float(part.split("=")[1]) for part in gpu["engine-a-gpu"]["command"] if "gpu-memory-utilization" in part)
    assert share <= 0.85
