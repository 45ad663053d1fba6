"""`lpc doctor` against real servers: what is well is said, and each thing that can be wrong is found and named."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

import pytest

from eviction_client.settings import ClientSettings
from lpc_cli import checks, cli
from lpc_cli.checks import Finding, examine
from testing.processes import RedisServer, free_port
from tests.authority import Authority
from tests.caching_sidecar import response_caches
from tests.chat_templates import STYLES, tokenizer_of
from tests.eventually import patiently
from tests.integration.test_server import sidecar
from tests.integration.test_tls import of, tls_sidecar
from tests.integration.test_tokenizer_offer import metrics_of
from tests.only import ROOT, base_install, hide_all_but


async def looked(**settings: object) -> dict[str, Finding]:
    findings = await asyncio.to_thread(examine, ClientSettings(**settings))  # type: ignore[arg-type]
    return {finding.check: finding for finding in findings if not finding.check.startswith("engine")}


def at_redis(url: str, **settings: object) -> dict[str, Finding]:
    values = {"predictor_address": f"127.0.0.1:{free_port()}", "redis_url": url, **settings}
    return {finding.check: finding for finding in examine(ClientSettings(**values))}  # type: ignore[arg-type]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tokenizer_of(STYLES["chatml"]).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


async def test_a_sidecar_that_is_well(
    tiny_models: Path, tokenizer: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    async with sidecar(tiny_models, served_models={"m": str(tokenizer)}) as (_, addresses):
        found = await looked(
            predictor_address=f"127.0.0.1:{addresses.port}", redis_url=redis_server.url, redis_timeout_s=5, served_model="m"
        )
    assert {name: f.status for name, f in found.items() if name != "redis latency"} == dict.fromkeys(
        ["address", "health", "model", "limits", "token request", "response caches", "hash seed", "redis", "clock"], "ok"
    )
    assert "tiny v1" in found["model"].found
    assert "4096 messages" in found["limits"].found
    assert found["response caches"].found == "off in this sidecar (LPC_CACHE_REDIS_URL)"
    assert found["token request"].found.startswith("m: token ids were read (tokenizer of LPC_SERVED_MODELS), probability 0.")


@pytest.mark.parametrize(("served_model", "name"), [("", "any model"), ("m", "m")])
async def test_without_a_tokenizer_no_prompt_is_sent_that_the_sidecar_would_count_and_log(
    tiny_models: Path, caplog: pytest.LogCaptureFixture, served_model: str, name: str
) -> None:
    async with sidecar(tiny_models) as (_, addresses):
        found = await looked(predictor_address=f"127.0.0.1:{addresses.port}", served_model=served_model)
        counted = await metrics_of(addresses)
    assert found["token request"].status == "warn"
    assert found["token request"].found == (
        f"{name}: token ids are not read; answers use lengths and times alone: no engine has offered a tokenizer yet"
    )
    assert not [line for line in caplog.messages if "cannot read prompts" in line]
    assert not [value for key, value in counted.items() if key.startswith("lpc_unread_prompts_total") and value]


async def test_response_caches_whose_redis_is_there_or_not(tiny_models: Path, tmp_path: Path) -> None:
    with response_caches(tmp_path, tiny_models) as caches:
        there = (await looked(predictor_address=caches.sidecar.address))["response caches"]
        caches.redis.kill()
        away = (await looked(predictor_address=caches.sidecar.address))["response caches"]
    assert (there.status, there.found) == ("ok", "on, 0 answers of this client in the scope default")
    assert away.status == "fail" and "their Redis does not answer" in away.found


async def test_a_token_that_is_missing(tiny_models: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"a: {sha256(b'right').hexdigest()}")
    (tmp_path / "token").write_text("right")
    async with sidecar(tiny_models, tokens=tmp_path / "tokens") as (_, addresses):
        address = f"127.0.0.1:{addresses.port}"
        refused = (await looked(predictor_address=address))["token"]
        welcome = await looked(predictor_address=address, predictor_token_file=tmp_path / "token")
    assert refused.status == "fail" and "LPC_PREDICTOR_TOKEN_FILE" in refused.advice
    assert welcome["model"].status == "ok"


async def test_tls_that_is_well_or_near_its_end_or_wrong(tiny_models: Path, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    async with tls_sidecar(tiny_models, authority.issue("sidecar", days=3), mutual=True) as addresses:
        address = f"127.0.0.1:{addresses.port}"
        well = await looked(predictor_address=address, **of(authority.issue("engine")))
        assert well["own certificate"].status == "ok"
        assert well["certificate"].status == "warn" and "3 more days" in well["certificate"].found
        assert well["model"].status == "ok"
        plain = (await looked(predictor_address=address))["health"]
        assert plain.status == "fail" and "LPC_PREDICTOR_CA" in plain.advice
        none = (await looked(predictor_address=address, predictor_ca=authority.certificate))["certificate"]
        assert none.status == "fail" and "LPC_CLIENT_CERTIFICATE" in none.advice
        other = (await looked(predictor_address=address, predictor_ca=stranger.certificate))["certificate"]
        assert other.status == "fail" and "not signed by the given authority" in other.found
        expired = (await looked(predictor_address=address, **of(authority.issue("old", days=-1))))["certificate"]
        assert expired.status == "fail" and "has expired" in expired.found
        files = replace(authority.issue("engine"), key=tmp_path / "nowhere")
        missing = (await looked(predictor_address=address, **of(files)))["certificate"]
        assert missing.status == "fail" and "nowhere" in missing.found
    async with tls_sidecar(tiny_models, authority.issue("elsewhere", san="DNS:elsewhere"), mutual=False) as addresses:
        found = await looked(predictor_address=f"127.0.0.1:{addresses.port}", predictor_ca=authority.certificate)
    assert found["certificate"].status == "fail" and "subjectAltName" in found["certificate"].found


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("no-address", "is neither host:port nor"),
        ("host.invalid:50051", "has no address|did not answer"),
        ("unix:///nowhere/lpc.sock", "no such file"),
    ],
)
async def test_an_address_that_is_none(address: str, why: str) -> None:
    import re

    found = await looked(predictor_address=address)
    assert found["address"].status == "fail"
    assert re.search(why, found["address"].found)
    assert "health" not in found


def test_a_redis_that_is_missing_or_locked(tmp_path: Path) -> None:
    gone = at_redis(f"redis://:a-secret@127.0.0.1:{free_port()}/0")["redis"]
    assert gone.status == "fail" and "LPC_REDIS_URL" in gone.advice and "a-secret" not in str(gone)
    with RedisServer(tmp_path, requirepass="right") as server:
        locked = at_redis(server.url)["redis"]
    assert locked.status == "fail" and "password" in locked.found + locked.advice


@pytest.mark.parametrize(("ahead", "status"), [(0.0, "ok"), (3.0, "warn"), (-3.0, "warn"), (60.0, "fail"), (-60.0, "fail")])
def test_a_clock_that_differs_from_redis(redis_server: RedisServer, ahead: float, status: str) -> None:
    import time

    with patch.object(checks.time, "time", lambda real=time.time: real() + ahead):
        found = at_redis(redis_server.url, redis_timeout_s=5)["clock"]
    assert found.status == status
    assert ("NTP" in found.advice) is (status != "ok")
    if ahead:
        assert ("ahead of" in found.found) is (ahead > 0)


@pytest.mark.parametrize(("seed", "status"), [("0", "ok"), (None, "warn"), ("random", "fail")])
def test_a_hash_seed_that_is_not_shared(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, seed: str | None, status: str
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert at_redis(redis_server.url, redis_timeout_s=5)["hash seed"].status == status


def test_a_check_that_breaks_is_a_finding_and_quotes_nothing() -> None:
    def broken(*_: object) -> Iterator[Finding]:
        raise RuntimeError("hunter2")

    with patch.object(checks, "_redis", broken):
        found = {finding.check: finding for finding in examine(ClientSettings(predictor_address="127.0.0.1:1"))}
    assert found["redis"].status == "fail" and "RuntimeError" in found["redis"].found and "hunter2" not in str(found)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["lpc", "doctor", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    monkeypatch.delenv("LPC_REDIS_URL", raising=False)
    assert run("--json", "--address", f"127.0.0.1:{free_port()}") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert run("--redis-url", "http://:hunter2@r") == 2
    said = capsys.readouterr()
    assert "redis_url: " in said.err and "hunter2" not in said.err + said.out


async def test_the_base_install_suffices_and_nothing_heavy_is_loaded(tiny_models: Path, tmp_path: Path) -> None:
    only = hide_all_but(base_install(), tmp_path / "only")
    program = (
        "import atexit, sys; sys.argv = ['lpc', 'doctor', '--json'];"
        "atexit.register(lambda: print(sorted({'numpy', 'onnxruntime', 'torch', 'transformers'} & set(sys.modules))));"
        "from lpc_cli.cli import main; main()"
    )
    async with sidecar(tiny_models) as (_, addresses):
        env = {**os.environ, "PYTHONPATH": f"{only}:{ROOT}", "LPC_PREDICTOR_ADDRESS": f"127.0.0.1:{addresses.port}"}
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=patiently()
        )
    assert done.returncode == 0, done.stderr
    *answer, loaded = done.stdout.strip().splitlines()
    found = {check["check"]: check["status"] for check in json.loads("\n".join(answer))["checks"]}
    assert found["health"] == found["model"] == "ok"
    assert loaded == "[]"
