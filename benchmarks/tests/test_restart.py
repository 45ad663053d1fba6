"""The benchmark of a restart compares like with like."""

from benchmarks.rules import restart
from lpc_apps.simulator.run import WorkloadSpec


def test_a_restart_loses_what_was_learned_and_the_state_brings_nearly_all_of_it_back() -> None:
    spec = WorkloadSpec(workload="few-shot", seed=7)
    hits = {mode: restart.hits_after_restart(spec, 0.02, mode, 0.6, 600.0) for mode in restart.MODES}
    assert hits["lru"] < hits["plugin"] < hits[restart.STATE]
    assert hits[restart.STATE] - hits["plugin"] > 2 * abs(hits[restart.BEFORE] - hits[restart.STATE])
