"""Simulation and embedding on a real Dask cluster of two processes, some of which die: the rows of one machine.

Ray's are the same tests; they run where Ray is installed (`make test-ray`). `make test` runs those in which nobody dies.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from lpc.commands.cli import app
from lpc.logs.datasets.conversation import Conversation
from lpc.logs.traces import TraceError
from lpc.model.conversation import Message
from lpc.simulator.run import Run, WorkloadSpec, run_one, sweep
from lpc.training import spread as spreading
from lpc.training.embedding import embed, load_embedded
from lpc.training.spread import ClusterError, Workers, spread, workers_of
from tests.clusters import DaskCluster, count_together, dask_cluster, die, die_once, ray_cluster
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


@pytest.mark.nightly
def test_embedded_shards_are_those_of_one_machine(
    cluster: Cluster, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpc.training.embedding.EXAMPLES_PER_SHARD", 16)
    [artifact] = [path.parent for path in tiny_models.rglob("model.onnx")]
    chats = [Conversation(f"c{i}", (Message("user", f"hello {i}"), Message("assistant", "hi")) * 3) for i in range(40)]
    for name, workers in (("here", Workers()), ("there", cluster.workers)):
        assert embed(iter(chats), artifact, tmp_path / name, dataset="d", workers=workers, threads=1) == 120
    shards = sorted(path.name for path in (tmp_path / "here").glob("*.parquet"))
    assert shards == sorted(path.name for path in (tmp_path / "there").glob("*.parquet"))
    assert len(shards) == 8
    here, there = (load_embedded(tmp_path / name) for name in ("here", "there"))
    assert (here.embedding == there.embedding).all()
    assert list(here.conversation) == list(there.conversation)


@pytest.mark.nightly
def test_a_worker_may_die_and_the_rows_are_the_same(cluster: Cluster, trace: Path, tmp_path: Path) -> None:
    runs = [
        Run(WorkloadSpec(trace=trace, format="qwen"), name, size) for name in ("lru", "slru", "value") for size in (0.03, 0.1)
    ]
    (tmp_path / "marks").mkdir()
    if cluster.dask is not None:
        for _ in range(2):  # who dies stays dead: Dask's nannies, who would start another, are left out
            cluster.dask.start()
        cluster.dask.wait()
    found = dict(spread([(die_once, (str(tmp_path / "marks"), run)) for run in runs], cluster.workers))
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert [found[place] for place in range(len(runs))] == [run_one(run) for run in runs]


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


@pytest.mark.nightly
def test_processes_of_this_machine_may_die_too(trace: Path, tmp_path: Path) -> None:
    runs = [Run(WorkloadSpec(trace=trace, format="qwen"), name, 0.05) for name in ("lru", "ttl", "slru")]
    found = dict(spread([(die_once, (str(tmp_path), run)) for run in runs], Workers(2)))
    assert [found[place] for place in range(len(runs))] == [run_one(run) for run in runs]


@pytest.mark.nightly
def test_tasks_run_alone_in_their_process_whatever_threads_it_has(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    with dask_cluster(tmp_path, workers=1, threads=4) as made:
        tasks = [(count_together, (str(tmp_path / "marks"),))] * 8
        assert [together for _, together in spread(tasks, workers_of(None, f"dask={made.address}"))] == [1] * 8


@pytest.mark.nightly
def test_clusters_that_are_not_there_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "ANSWER_S", 3)
    with pytest.raises(ClusterError, match="no Dask scheduler answers at tcp"):
        list(spread([(die, ())], workers_of(None, "dask=tcp://127.0.0.1:1")))
    with dask_cluster(tmp_path, workers=0) as made, pytest.raises(ClusterError, match="has no workers: start some"):
        list(spread([(die, ())], workers_of(None, f"dask={made.address}")))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"pip install 'learned-prefix-cache\[ray\]'"):
        list(spread([(die, ())], workers_of(None, "ray=127.0.0.1:1")))
