"""`lpc simulate`: hit rates of eviction policies on a log."""

import inspect
from contextlib import nullcontext
from typing import Any

from lpc.distribution import install
from lpc_cli.outcome import fail, report
from lpc_cli.simulate_options import SimulateOptions


def simulate(**given: Any) -> None:
    """Replay a log, generated workloads or ShareGPT under eviction policies, and compare their hit rates.

    ShareGPT is a bundled sample of it.
    """
    try:
        from lpc_apps.logs.log import open_log
        from lpc_cli.simulation import describe, simulate_engine
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed: {install('sim')}")
    options = SimulateOptions(**given)
    options.refuse_conflicts()
    _ = (
        options.settings,
        options.memory,
        options.cpu is None or options.kv,
    )  # a model that cannot be read is an error before the log is read

    def measure() -> dict[str, Any]:
        opened = nullcontext() if options.logs is None else open_log(options.logs, options.log_format, rate=options.rate)
        with opened as log:
            if options.describe:
                return describe(options, log)
            if options.cpu is not None:
                from lpc_cli.simulation_tier import simulate_tiers

                return simulate_tiers(options, log)
            if options.engines is None:
                return simulate_engine(options, log)
            from lpc_cli.fleet import simulate_fleets

            return simulate_fleets(options, log)

    report(measure, options.output, options.picture, options.html, as_json=options.as_json)


simulate.__signature__ = inspect.signature(SimulateOptions)  # type: ignore[attr-defined]  # Typer reads the options here
