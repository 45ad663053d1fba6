"""What can be said of the Dockerfile without a container engine. `make test-containers` builds it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc_cli.cli import app
from predictor_service.settings import ServiceSettings
from response_cache.service.settings import CacheServerSettings
from tests.dockerfile import ROOT, stages

ARGUMENTS, STAGES = stages()
SIDECARS = ("cpu", "gpu")


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([Path(sys.executable).parent / "hadolint", "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def test_every_stage_is_built_from_a_stage_or_a_pinned_argument() -> None:
    for stage in STAGES.values():
        assert stage.base in STAGES or stage.base.removeprefix("${").removesuffix("}") in ARGUMENTS


def test_every_path_that_is_copied_exists_and_enters_the_build() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    for stage in STAGES.values():
        for text in stage.texts("COPY"):
            words = text.split()
            origin = [word.partition("=")[2] for word in words if word.startswith("--from=")]
            if origin:
                assert origin[0] in STAGES
                continue
            for source in words[:-1]:
                assert (ROOT / source).exists()
                assert any(Path(source).match(pattern) or Path(pattern) in Path(source).parents for pattern in let_in), source


def test_every_stage_that_installs_takes_the_index_as_an_argument() -> None:
    installing = {
        name for name, stage in STAGES.items() if any(re.search(r"\bpip (install|wheel)", t) for t in stage.texts("RUN"))
    }
    assert installing == {"wheel", "venv-cpu", "venv-gpu", "trainer", "models", "engine"}
    for name in installing:
        assert {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"} <= set(STAGES[name].texts("ARG")), name
    # pip reads them from the environment; uv has to be told.
    assert all(f"${{{name}}}" in STAGES["engine"].texts("RUN")[0] for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"))


def test_the_password_of_an_index_comes_as_a_secret_to_every_step_that_uses_the_index() -> None:
    for name, stage in STAGES.items():
        for text in stage.texts("RUN"):
            installs = [one for one in re.split(r"&&|\|\||;;", text) if re.search(r"\bpip install", one)]
            if not all("--no-index" in one for one in installs):
                assert text.startswith("--mount=type=secret,id=netrc,target=/root/.netrc "), name


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"])
def test_an_index_with_a_password_as_a_build_argument_is_refused(name: str) -> None:
    """It would stay in the history of trainer and engine; every image is built from the stage that checks it."""
    check = next(text for text in STAGES["wheel"].texts("RUN") if text.startswith("case "))
    for url, code in (("https://u:secret@one.example/simple", 1), ("https://one.example/s", 0)):
        done = subprocess.run(["sh", "-c", check], env={name: url}, capture_output=True, text=True)
        assert done.returncode == code and "secret@" not in done.stderr and (not code or "--secret id=netrc" in done.stderr)
    from_wheel = {name for name, stage in STAGES.items() if any("--from=wheel" in text for text in stage.texts("COPY"))}
    assert {"venv-cpu", "venv-gpu", "trainer", "models", "engine"} <= from_wheel


@pytest.mark.parametrize("target", SIDECARS)
def test_persistent_state_of_a_sidecar_image_is_in_a_folder_of_its_user(target: str) -> None:
    made = next(text for text in STAGES[target].texts("RUN") if "install -d" in text)
    folders = re.findall(r"install -d -m 0700 -o 10001 -g 10001 (.*)", made)[0].split()
    environment = STAGES[target].env()
    # The others: tests/deploy/test_compose.py.
    kept = {folder for folder in folders if not folder.startswith(("/secrets/", "/labels", "/learned"))}
    assert {str(Path(environment[name]).parent) for name in ("LPC_UNIX_SOCKET", "HF_HOME")} == kept


@pytest.mark.parametrize("target", SIDECARS)
def test_a_sidecar_image_serves_as_a_user_without_rights(target: str) -> None:
    stage = STAGES[target]
    assert stage.texts("USER") == ["10001:10001"]
    assert stage.command("ENTRYPOINT") + stage.command("CMD") == ["lpc", "serve"]
    assert CliRunner().invoke(app, [*stage.command("CMD"), "--help"]).exit_code == 0


@pytest.mark.parametrize("target", SIDECARS)
def test_a_sidecar_images_settings_exist_and_are_valid(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {name: value for name, value in STAGES[target].env().items() if name.startswith("LPC_")}
    assert {name.removeprefix("LPC_").lower() for name in settings} <= set(ServiceSettings.model_fields)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    made = ServiceSettings()
    assert {"gpu": "cuda"}.get(target, "cpu") == made.provider
    assert {str(made.port), str(made.metrics_port)} == set(STAGES[target].texts("EXPOSE")[0].split())


def test_nothing_is_copied_that_could_hold_data_or_secrets() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in ignore if not line.startswith("#")) == "*"
    assert not {"!models", "!data", "!.", "!shared"} & set(ignore)


def test_the_caches_image_runs_its_command_on_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = STAGES["caches"]
    for name, value in {**stage.env(), "LPC_CACHE_REDIS_URL": "redis://r", "LPC_CACHE_KEYS": "k", "LPC_TOKENS": "t"}.items():
        monkeypatch.setenv(name, value)
    made = CacheServerSettings()
    assert {str(made.port), str(made.metrics_port)} <= set(" ".join(stage.texts("EXPOSE")).split())
    assert stage.command("CMD") == ["cache", "serve"] and str(made.unix_socket) == "/run/lpc/caches.sock"
