"""A real Prometheus, and a page of metrics as vLLM writes them."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml
from prometheus_client import REGISTRY, Counter, generate_latest

from eviction_client.observability.metrics import METRICS, EngineMetrics
from eviction_client.observability.misses import SOURCES
from eviction_client.policy.rules import RULES
from testing.processes import free_port
from tests.eventually import patiently


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = f"http://{address}"
        self._api = f"{self.address}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._api}/{path}?{urlencode(parameters)}", timeout=patiently()) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result = self.get("query", query=expression)["result"]
        assert isinstance(result, list)
        return result


@contextmanager
def prometheus(folder: Path, rules: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes each job's target and evaluates the rules, every second."""
    jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + patiently()
        while True:
            try:
                with urlopen(f"http://{address}/-/ready", timeout=patiently()):
                    break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "prometheus.log").read_text()[-2000:]) from None
                time.sleep(0.1)
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(patiently())


VLLM = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}
# HELP vllm:request_prefill_time_seconds Histogram of time spent in PREFILL phase for request.
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{{le="+Inf",engine="0",model_name="m"}} {queries}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="m"}} {queries}
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="m"}} {queries}
"""
"""The three metrics of vLLM 0.32 that rules and dashboard read."""


@contextmanager
def vllm_metrics(*, failing: bool = False) -> Iterator[str]:
    """Serve metrics under vLLM's names, half of whose tokens hit; yield their address.

    The rule `value` is in force: its ghost caches hit 45%, those of `own` 41%, of LRU 30%. Of the prompt tokens only the engine
    hit 25%, and only LRU would have hit 5%.
    A failing plug-in counts an exception per scrape.
    """
    scrapes = iter(range(1, 10**9))
    plug_in = EngineMetrics("0")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            queries = 1000 * next(scrapes)
            values = {
                (name, re.sub("[a-z]+", "x", label)): float(queries if kind is Counter else 1)
                for name, (kind, _, label) in METRICS.items()
            }
            values |= {("lpc_failures", ""): float(queries) if failing else 0.0, ("lpc_fallback_share", ""): 0.0}
            values |= {("lpc_stock_fallback", ""): 0.0, ("lpc_tier_stock_fallback", ""): 0.0}
            del values["lpc_rule", "x"]
            values |= {("lpc_rule", rule): float(rule == "value") for rule in RULES}
            ghosts = {"asked": 1.0, "value": 0.45, "own": 0.41, "lru": 0.3, "chosen": 0.45}
            values |= {("lpc_ghost_blocks", cache): share * queries for cache, share in ghosts.items()}
            values |= {("lpc_tenant_ghost_blocks", f"x,{cache}"): share * queries for cache, share in ghosts.items()}
            missed = {"asked": 1.0, "0.5": 0.8, "1": 0.7, "2": 0.4, "4": 0.3, "8": 0.3}
            values |= {("lpc_missed_blocks", size): share * queries for size, share in missed.items()}
            del values["lpc_prompt_tokens", "x"], values["lpc_hit_by_one_tokens", "x"]
            values |= {("lpc_prompt_tokens", source): 0.1 * queries for source in SOURCES[:10]}
            values |= {("lpc_hit_by_one_tokens", who): share * queries for who, share in (("engine", 0.25), ("lru", 0.05))}
            plug_in.update(values)
            ours = generate_latest(REGISTRY).decode().split("# HELP ")
            shown = "".join(f"# HELP {part}" for part in ours if part.startswith("lpc_"))
            body = (VLLM.format(queries=queries, hits=queries // 2) + shown).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
