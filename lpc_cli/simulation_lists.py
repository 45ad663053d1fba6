"""Lists in the options of `lpc simulate`: policies, workloads, numbers of sessions."""

from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.policies import REGISTRY
from lpc_apps.simulator.run import DEFAULT_POLICIES
from lpc_apps.simulator.workloads import EVERYDAY, WORKLOADS
from lpc_cli.simulate_options import SimulateOptions


def sessions_of(options: SimulateOptions) -> list[int | None]:
    """Return the numbers of concurrent sessions; None: no closed loop."""
    if not options.closed:
        return [None]
    if options.count_from is not None:
        raise SimulationError("a closed loop counts hits after a quarter of its --requests: leave out --count-from")
    counts = [_number(part, "number of sessions") for part in parts_of(options.sessions)]
    if any(count < 1 or count != int(count) for count in counts):
        raise SimulationError(f"{options.sessions!r:.40} is not a list of numbers of sessions: give whole numbers from 1")
    return [int(count) for count in counts]


def workloads_of(names: str | None) -> list[str | None]:
    """Return the names of generated workloads; None: a log, or conversations."""
    if names is None:
        return [None]
    found = list(WORKLOADS) if names == "all" else parts_of(names)
    known = [*WORKLOADS, *EVERYDAY]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise SimulationError(f"unknown workload {unknown[0]!r:.40}: choose from {', '.join(known)}, or all")
    return [*found]


def names_of(policies: str | None) -> list[str]:
    """Return the names of policies."""
    names = list(REGISTRY) if policies == "all" else list(DEFAULT_POLICIES) if policies is None else parts_of(policies)
    unknown = [name for name in names if name not in REGISTRY]
    if unknown:
        raise SimulationError(f"unknown policy {unknown[0]!r:.40}: choose from {', '.join(REGISTRY)}, or all")
    return names


def parts_of(text: str) -> list[str]:
    """Return the parts of a list with commas, each once; at least one."""
    parts = [*dict.fromkeys(part.strip() for part in text.split(",") if part.strip())]
    if not parts:
        raise SimulationError("an empty list was given where at least one value is needed")
    return parts


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise SimulationError(f"{text!r:.40} is not a {what}")
    return value
