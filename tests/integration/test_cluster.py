"""Simulation and embedding on a real Dask cluster of two processes, some of which die: the rows of one machine.

Ray's are the same tests; they run where Ray is installed (`make test-ray`). `make test` runs those in which nobody dies.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from lpc.logs.traces import TraceError
from lpc_apps.commands.cli import app
from lpc_apps.simulator.run import Run, WorkloadSpec, sweep
from lpc_apps.training.spread import ClusterError, Workers, spread, workers_of
from tests.clusters import DaskCluster, dask_cluster, die, ray_cluster
from tests.integration.test_simulate import qwen_file

RUN = CliRunner()
ENGINES = [
    "dask",
    pytest.param("ray", marks=pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="make test-ray installs Ray")),
]
# Dask and Ray leave sockets and threads behind in this process for a moment; what they warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]


class Cluster(NamedTuple):
    """What --cluster is given, and where it is Dask's, its processes."""

    option: str
    dask: DaskCluster | None = None

    @property
    def workers(self) -> Workers:
        return workers_of(None, self.option)


@pytest.fixture(scope="module", params=ENGINES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ray":
        with ray_cluster(folder) as address:
            yield Cluster(f"ray={address}")
    else:
        with dask_cluster(folder) as made:
            yield Cluster(f"dask={made.address}", made)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_file(tmp_path_factory.mktemp("trace") / "qwen.jsonl")


def test_simulated_rows_are_those_of_one_machine(cluster: Cluster, trace: Path, tmp_path: Path) -> None:
    asked = ["simulate", "--trace", str(trace), "--format", "qwen", "--policies", "lru,value,wa", "--capacity", "3%,10%"]
    for name, where in (("here", []), ("there", ["--cluster", cluster.option])):
        done = RUN.invoke(app, [*asked, *where, "--output", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
    here, there = (json.loads((tmp_path / name).read_text())["rows"] for name in ("here", "there"))
    assert there == here
    assert len(there) == 6


def test_what_a_worker_cannot_do_is_said_here_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    missing = WorkloadSpec(trace=tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match=r"cannot read .*missing\.jsonl"):
        sweep([Run(missing, "lru", 0.1)], cluster.workers)


@pytest.mark.nightly
def test_tasks_that_kill_every_worker_end_with_a_reason(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, workers=1, forgiving=0) as made, pytest.raises(ClusterError, match="die at one task"):
        list(spread([(die, ())], workers_of(None, f"dask={made.address}")))
    with pytest.raises(ClusterError, match="worker processes died 4 times"):
        list(spread([(die, ()), (die, ())], Workers(2)))
