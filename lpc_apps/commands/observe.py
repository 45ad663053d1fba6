"""`lpc observe`: estimate the plug-in's gain in a running engine from its KV events."""

import re
import time
from typing import Annotated, Any

import typer

from lpc.errors import UsageError
from lpc_apps.commands.options import JsonOutput, Output
from lpc_apps.commands.outcome import report as printed

REPORT_S = 30.0


def observe(
    kv_events: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the engine's KV events, tcp://host:5557.")],
    replay: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of the engine's replay socket, for lost messages.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Topic of the events.")] = "",
    blocks: Annotated[int | None, typer.Option(min=1, help="Blocks of the engine's cache, if --engine is not given.")] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="The engine, http://host:port, to read its number of blocks.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Duration; default: until Ctrl-C.")] = None,
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Estimate the plug-in's gain, and why prompts miss, from the KV events of an engine without the plug-in.

    Nothing is installed in the engine. vLLM publishes events with --kv-events-config '{"enable_kv_cache_events": true}'.
    """
    from lpc_apps.simulator.kv_events import KVEvents
    from lpc_apps.simulator.observer import Observer

    if (blocks is None) == (engine is None):
        raise UsageError("give either --blocks N or --engine URL")
    observer = Observer(blocks if blocks is not None else blocks_of(engine or ""))
    events = KVEvents(kv_events, replay=replay, topic=topic)

    def measure() -> dict[str, Any]:
        until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
        try:
            while (left := until - time.monotonic()) > 0:
                for batch in events.batches(min(REPORT_S, left)):
                    observer.see(batch)
                typer.echo(_so_far(observer), err=True)
        except KeyboardInterrupt:
            typer.echo("", err=True)
        finally:
            events.close()
        observer.finish()
        return _figures(observer)

    printed(measure, output, as_json=as_json)


def blocks_of(engine: str) -> int:
    """Return the number of blocks of a vLLM engine's cache. Raises UsageError if its metrics lack it."""
    from lpc_apps.commands.report import fetched, metrics_of

    url = metrics_of(engine)
    found = re.search(r'vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', fetched(url).decode(errors="replace"))
    if found is None:
        raise UsageError(f"{url} does not contain the number of blocks of the cache: give --blocks")
    return int(found[1])


def _so_far(observer: Any) -> str:
    lost = f", {observer.lost} messages lost" if observer.lost else ""
    gain = _gain(observer)
    known = "unknown yet" if gain is None else f"{gain:+.1%} of prompt tokens"
    return f"{observer.requests:,} requests{lost}; gain over LRU {known}"


def _gain(observer: Any) -> float | None:
    ghosts = None if observer.plugin is None else observer.plugin.ghosts
    return (ghosts.value_hits - ghosts.lru_hits) / ghosts.asked if ghosts is not None and ghosts.asked else None


def _figures(observer: Any) -> dict[str, Any]:
    from eviction_client.plugin_metrics import values_of_plugin
    from lpc_apps.commands.report import ReportError, figures_of, show

    if observer.plugin is None:
        raise ReportError("no event arrived: check that the engine has traffic and publishes events at this address")
    ghosts = observer.plugin.ghosts
    counted = {
        (f"{name}_total", *labels.split(",")): value for (name, labels), value in values_of_plugin(observer.plugin).items()
    }
    figures = figures_of(counted)
    asked = max(ghosts.asked, 1)
    figures |= {
        "requests": observer.requests,
        "lost_messages": observer.lost,
        "lru_hit_rate": ghosts.lru_hits / asked,
        "value_hit_rate": ghosts.value_hits / asked,
        "gain": _gain(observer),
    }
    show(figures)
    typer.echo(f"expected hit rate: LRU {figures['lru_hit_rate']:.1%}, retention value {figures['value_hit_rate']:.1%}")
    return figures
