"""Three walks of the architecture page, through the real code in this process; the fourth is in tests/engine/test_walk.py."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from lpc_cli.cli import app
from response_cache.semantic import gate as gates
from response_cache.semantic.calibration import Embeddings
from response_cache.semantic.evidence import LEVELS, Evidence, edge
from response_cache.semantic.evidence_file import write_evidence
from response_cache.service.running import running
from response_cache.store.scopes import ScopeSettings
from testing.processes import RedisServer
from tests.chat_templates import STYLES, tokenizer_of
from tests.engine_double import EngineDouble, serve_double
from tests.eventually import eventually
from tests.integration.response_cache.gateway.conftest import a_gateway, chat
from tests.integration.response_cache.test_service import caching
from tests.integration.test_server import sidecar
from tests.integration.test_tokenizer_offer import TURNS, engine, ids_of
from tests.walks import Walk, compare, counts_in, following, section

LEARNING: Final = {
    **dict.fromkeys(("eviction_client.learner", "eviction_client.events"), "learns from the request, as walk 2 shows"),
    **dict.fromkeys((f"eviction_client.policy.rules.{rule}" for rule in ("lpc", "mq", "ttl", "wa")), "another rule"),
    "eviction_client.policy.fits": "fits at the same time as the request, as walk 2 shows",
    "eviction_client.transport.predictor": "counts",
}
COUNTED: Final = {
    "PredictorCounters": "counts",
    **dict.fromkeys(("Own", "Value"), "a rule, which a fit hands on if it runs at the same time"),
}
FORMATS: Final = (
    "bedrock",
    "har",
    "langfuse",
    "litellm",
    "lmcache",
    "nginx",
    "otel",
    "runs",
    "vertex",
    "vllm",
    "agents",
    "aiperf",
    "qwen",
)
REPLAY: Final = {
    **dict.fromkeys((f"lpc_apps.logs.*.{name}" for name in FORMATS), "another format, which recognition compares"),
    "lpc_cli.cli": "finds the command",
    "lpc_cli.outcome": "prints the rows",
    "lpc_cli.simulation_tables": "prints the rows",
    "lpc_apps.simulator.amounts": "writes numbers for a reader",
    "lpc_apps.simulator.verdict": "writes the paragraph under the rows",
}
MACHINES: Final = {
    **dict.fromkeys(("SimulateOptions", "WorkloadSpec", "PolicySettings", "Queueing", "Compute", "Cost"), "options of the run"),
    **dict.fromkeys(("Replay", "Fcfs", "LruPolicy", "Paths"), "parts of the simulator"),
    **dict.fromkeys(("Format", "Reader", "Sample"), "parts of the reader"),
    "Skipped": "counts lines that cannot be read",
    "_Answers": "prints the rows",
}
INDEX: Final = {
    "response_cache.store.vectors": "fills the index in the background",
    "response_cache.store.shared_evidence": "fetches evidence in the background",
    "response_cache.store.days": "counts",
    "predictor_service.labels.*": "expires turns in the background",
    "response_cache.gateway.engines": "probes engines in the background",
    "response_cache.gateway.server": "builds the gateway",
}
INDEXED: Final = dict.fromkeys(("PartitionIndex", "Cluster", "Vector"), "the index, filled in the background")


async def test_a_prompt_becomes_a_class_as_the_page_shows(tiny_models: Path, tmp_path: Path) -> None:
    walk, folder = Walk(LEARNING, COUNTED), tmp_path / "engine"
    tokenizer = tokenizer_of(STYLES["chatml"])
    tokenizer.save_pretrained(folder)
    with following(walk):
        async with sidecar(tiny_models, reload_s=3600.0) as (_, addresses):
            client = engine(f"127.0.0.1:{addresses.port}", folder)
            plugin = Plugin(ClientSettings(pooling="off"), capacity=1000, block_tokens=16, predictor=client)
            await eventually(lambda: client.tokenizer_state == "ready")
            for number in range(2):  # the second continues the first
                tokens = ids_of(tokenizer, *TURNS, *["again"] * 2 * number)
                blocks = [number.to_bytes(32, "big") for number in range(20)]
                plugin.started(number, blocks, cached=0)
                assert plugin.settle()
                walk.begin()
                plugin.admitted(number, tokens, session="s")
                answered = number + 1
                await eventually(lambda answered=answered: client.counters.answered == answered)  # type: ignore[misc]
                ended = plugin.finished(number, completed=True, blocks=blocks, prompt_blocks=20, session="s", token_ids=tokens)
                walk.end(counts=number == 1)
                assert plugin.settle()
            plugin.close()
    assert ended.predicted and ended.spans
    assert not compare(1, walk)


def chat_log() -> list[dict[str, Any]]:
    """Return a log of five conversations."""
    lines, conversations, words = [], [list[dict[str, str]]() for _ in range(5)], "word " * 200
    for number in range(40):
        messages = conversations[number % 5]
        messages.append({"role": "user", "content": f"{number} asks {words}"})
        lines.append({"timestamp": 1.7e9 + 10.0 * number, "messages": list(messages), "model": "m"})
        messages.append({"role": "assistant", "content": f"{number} answers {words}"})
    return lines


def hash_log() -> list[dict[str, Any]]:
    """Return a log of five conversations as blocks, in Mooncake's format."""
    lines: list[dict[str, Any]] = []
    for number in range(40):
        ids = [100 * (number % 5) + block for block in range(4 + number // 5)]
        length = 512 * len(ids)
        lines.append({"timestamp": 10_000 * number, "input_length": length, "output_length": 100, "hash_ids": ids})
    return lines


def test_a_line_of_a_chat_log_becomes_a_row_as_the_page_shows(tmp_path: Path) -> None:
    assert not compare(3, replayed(chat_log(), tmp_path))


def test_a_line_of_a_log_of_hashes_takes_as_many_files_as_the_page_states(tmp_path: Path) -> None:
    walk = replayed(hash_log(), tmp_path)
    stated = counts_in(r"log of hashes takes (\d+) files and (\d+) types", section(3))
    assert (len(walk.files()), len(walk.type_names())) == stated


def replayed(lines: list[dict[str, Any]], folder: Path) -> Walk:
    """Return the walk of a log through `lpc simulate`."""
    walk, log = Walk(REPLAY, MACHINES), folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # In turn: else LRU is replayed without the engine.
    options = ["--capacity", "40%", "--policies", "lru", "--in-turn", "--json"]
    with following(walk):
        CliRunner().invoke(app, ["simulate", "--workload", "loop", *options])  # imports
        walk.begin()
        ended = CliRunner().invoke(app, ["simulate", str(log), *options])
        walk.end()
    assert ended.exit_code == 0 and json.loads(ended.stdout)["rows"]
    return walk


@pytest.mark.usefixtures("patient")
async def test_a_completion_becomes_a_semantic_hit_as_the_page_shows(
    tiny_models: Path, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AUDITS", "FIRST_AUDITS"):
        monkeypatch.setattr(gates, name, 0.0)
    evidence = Evidence()
    for _ in range(400):  # the same at every similarity, since the tiny model's vectors are meaningless
        for level in range(LEVELS):
            evidence.apply([*evidence.lookup(edge(level) + 1e-4), *evidence.label(edge(level) + 1e-4, same=True)])
    write_evidence(tmp_path / "evidence.json", evidence, Embeddings(tiny_models, "tiny").encoder)
    scopes = {"default": ScopeSettings(kind="faq", mode="serve", evidence=tmp_path / "evidence.json")}
    settings = caching(tiny_models, tmp_path, redis_server.url, cache_gateways="anonymous", cache_scopes=scopes)
    walk, question = Walk(INDEX, INDEXED), "where can a bird be seen in the north"
    ends = iter(("then", "so", "well", "dear", "friend", "fine", "good", "nice", "great", "right", "okay"))
    with following(walk):
        async with (
            running(settings) as addresses,
            serve_double(EngineDouble()) as double,
            a_gateway(double, sidecar=f"127.0.0.1:{addresses.port}") as gateway,
        ):
            assert (await gateway.ask(chat(question))).headers["x-lpc-cache"] == "miss"

            async def similar() -> bool:
                walk.begin()
                # Another inflection, so that words are compared whichever earlier question is the nearest.
                answer = await gateway.ask(chat(f"please {question.replace('bird', 'birds')} {next(ends)}"))
                hit = answer.headers.get("x-lpc-cache") == "semantic"
                walk.end(counts=hit)
                return hit

            for _ in range(4):  # the first once the index has the question
                await eventually(similar)
    assert not compare(4, walk)
