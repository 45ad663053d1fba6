"""Both sides of the benchmark `speed` run their own code."""

import json
from pathlib import Path

import pytest

from benchmarks.speed import ROOT, Run, SpeedError, figures_of, measured, table, unpacked, write_copies

RECORD = {"timestamp": 500, "input_length": 1000, "output_length": 5, "hash_ids": [7, 9]}


def _lpc_that_prints(folder: Path, program: str) -> Path:
    package = folder / "lpc_cli"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(program)
    return folder


def test_the_command_of_a_folder_runs_and_its_figures_are_read(tmp_path: Path) -> None:
    writes = "import json, sys\nopen(sys.argv[-1], 'w').write(json.dumps(sys.argv[1:3]))\n"
    found = measured(_lpc_that_prints(tmp_path, writes), ("simulate", Path("log")))

    assert found.figures == ["simulate", "log"]
    assert found.seconds > 0
    assert found.memory > 1


def test_a_command_that_fails_ends_the_measurement_with_what_it_printed(tmp_path: Path) -> None:
    fails = "import sys\nsys.exit('no such log')\n"
    with pytest.raises(SpeedError, match="no such log"):
        measured(_lpc_that_prints(tmp_path, fails), ("simulate", "log"))


def test_another_revision_is_unpacked_with_the_generated_code() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    with unpacked("HEAD") as folder:
        assert (folder / "lpc_cli/cli.py").read_text()
        assert (folder / "lpc/v1/predictor_pb2.py").exists()
    assert not folder.exists()


def test_an_unknown_revision_is_an_error() -> None:
    with pytest.raises(SpeedError, match="no-such-revision"), unpacked("no-such-revision"):
        pass


def test_the_table_shows_the_share_of_time_and_figures_that_differ() -> None:
    before, slow, now = Run(4.0, 100.0, {"hits": 1}), Run(9.0, 100.0, {"hits": 1}), Run(1.0, 60.0, {"hits": 1})
    same = figures_of([before, slow], [now, now])
    other = figures_of([before], [Run(1.0, 60.0, {"hits": 2})])

    assert table({"curve": same, "plugin": other}, "v1").splitlines()[2:] == [
        "| curve | 4.00 | 1.00 | 0.25 | 100 | 60 | yes |",
        "| plugin | 4.00 | 1.00 | 0.25 | 100 | 60 | **no** |",
    ]


def test_copies_of_a_trace_share_no_blocks_and_follow_each_other(tmp_path: Path) -> None:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log.jsonl"
    trace.write_text(json.dumps(RECORD) + "\n")
    write_copies(trace, 2, log)

    first, second = map(json.loads, log.read_text().splitlines())
    assert first == RECORD
    assert second["hash_ids"] == [17, 19]
    assert second["timestamp"] == 3_600_500
