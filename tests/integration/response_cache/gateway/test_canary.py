"""Questions and answers appear nowhere but at client and engine, which is checked by one rare word in each.

Gateway, sidecar and Redis are real processes, the first two at log level DEBUG, Redis with an append-only file. The test
searches their logs (with gRPC's), all files that they write, all commands to Redis and its contents, and the metrics of both.
"""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest

from response_cache.semantic.calibration import Embeddings
from response_cache.semantic.evidence import Evidence
from response_cache.semantic.evidence_file import write_evidence
from response_cache.semantic.threshold import JudgeError
from testing.processes import RedisServer, Sidecar, free_port
from tests.caching_sidecar import write_keys
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually, patiently
from tests.integration.response_cache.gateway.conftest import CHAT, chat
from tests.integration.test_canary import monitored

ASKED, ANSWERED = "quokkaquestion", "axolotlanswer"
JUDGED = 'lpc_cache_judgements_total{scope="default",verdict="different"}'
QUESTION = f"where can a {ASKED} be seen in the north"


def written(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def scrape(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patiently()) as answer:
        return str(answer.read(), "utf-8")


async def test_questions_and_answers_appear_only_at_client_and_engine(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    evidence = tmp_path / "evidence.json"
    write_evidence(evidence, Evidence(), Embeddings(tiny_models, "tiny").encoder, JudgeError(0, 500))
    (tmp_path / "gateway").mkdir()
    ports = {"sidecar": free_port(), "gateway": free_port(), "gateway_metrics": free_port()}
    redis = RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always")
    with redis, monitored(redis) as told:
        scope = {"mode": "shadow", "judge": "embedding", "evidence": str(evidence)}
        sidecar = Sidecar(
            tmp_path,
            tiny_models,
            "tiny",
            log_level="DEBUG",
            metrics_port=ports["sidecar"],
            cache_redis_url=redis.url,
            cache_gateways="anonymous",
            cache_redis_timeout_s=5,
            cache_keys=write_keys(tmp_path / "keys"),
            cache_scopes={"default": scope},
        )
        async with serve_double(EngineDouble(words=["It is an ", ANSWERED])) as engine:
            with sidecar:
                gateway = Sidecar(
                    tmp_path / "gateway",
                    tiny_models,
                    "tiny",
                    command=("lpc_cli", "gateway"),
                    log_level="DEBUG",
                    port=ports["gateway"],
                    metrics_port=ports["gateway_metrics"],
                    gateway_engines=engine.url,
                    gateway_lookup_timeout_s=10,
                    gateway_cache_anonymous="true",
                    predictor_address=sidecar.address,
                )
                with gateway:
                    results = await ask_everything(f"http://127.0.0.1:{ports['gateway']}", engine, ports["sidecar"])
                    metrics = [scrape(ports["sidecar"]), scrape(ports["gateway_metrics"])]
                    held = b"".join(key + (redis.client().dump(key) or b"") for key in redis.client().scan_iter())
        logs = [sidecar.log, gateway.log, redis.log]
    # All paths were taken.
    assert results == ["miss", "exact", "miss", "exact", "miss", "miss", "none", "none", "none"]
    assert all("DEBUG" in log for log in logs[:2]) and any(b":v:" in line for line in told) and b"lpc:rc:" in held
    assert 'lpc_gateway_answers_total{cache="exact"' in metrics[1]
    files = written(tmp_path)
    assert any("appendonly" in str(path) and content for path, content in files.items())
    for word in (ASKED, ANSWERED):
        for where, text in {"logs": logs, "metrics": metrics}.items():
            assert word not in str(text), where
        for where, data in {"told": b"".join(told), "held": held, **files}.items():
            assert word.encode() not in data, where


async def ask_everything(url: str, engine: EngineDouble, metrics_port: int) -> list[str]:
    """Send requests of every kind that the gateway distinguishes; return their x-lpc-cache."""
    results: list[str] = []
    async with httpx2.AsyncClient(base_url=url, timeout=patiently(), trust_env=False) as client:

        async def ask(body: dict[str, Any] | bytes, **headers: str) -> httpx2.Response:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await client.post(CHAT, content=content, headers={"content-type": "application/json", **headers})
            results.append(answer.headers.get("x-lpc-cache", "none"))
            return answer

        async def kept() -> bool:
            answer = await client.post(CHAT, json=chat(QUESTION), headers={"cache-control": "only-if-cached"})
            return answer.status_code == 200

        assert ANSWERED in (await ask(chat(QUESTION))).text
        await eventually(kept)
        entry = (await ask(chat(QUESTION))).headers["x-lpc-entry"]
        await ask(chat(QUESTION.upper()))
        await ask(chat(QUESTION, stream=True))  # the body as a stream
        await ask(chat(QUESTION, stream=True, top_p=1))
        await until_judged(client, engine, metrics_port)
        results.append("miss")
        await ask(chat(ASKED, temperature=1))
        await ask(b'["' + ASKED.encode())
        engine.refuse = True
        await ask(chat(f"{ASKED} refused", temperature=1))
        for wrong in ({"entry": entry, "wrong": True, "drop": True}, {"entry": ASKED}):
            await client.post("/lpc/v1/feedback", json=wrong)
    return results


async def until_judged(client: httpx2.AsyncClient, engine: EngineDouble, metrics_port: int) -> None:
    """Send rewordings until one had a candidate, whose answer the judge compared with the engine's."""
    words = ("", "please", "thanks", "please thanks", "thanks please", "please please", "thanks thanks")
    for number, (before, after) in enumerate(itertools.islice(itertools.product(words, words), 1, None)):
        engine.words = [f"For the {number}th time, ", ANSWERED]
        await client.post(CHAT, json=chat(f"{before} {QUESTION} {after}"))
        await asyncio.sleep(0.5)  # the sidecar indexes stored questions in the background
        if f"{JUDGED} 0.0" not in await asyncio.to_thread(scrape, metrics_port):
            return
    pytest.fail("no rewording had a candidate")
