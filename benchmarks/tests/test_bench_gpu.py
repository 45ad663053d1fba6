"""Benchmark `gpu` where there is no GPU: what runs, what is skipped and why, and which model is found."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import gpu
from benchmarks.__main__ import app
from benchmarks.gpu import Bench, Failed, Skipped, Step
from benchmarks.gpu_run import REPLY, ROUNDS, traffic


@pytest.fixture
def no_nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("no_nvidia")
def test_without_a_gpu_all_steps_are_skipped_with_the_reason_and_the_exit_code_is_0() -> None:
    done = CliRunner().invoke(app, ["gpu"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert len(figures["steps"]) == len(Bench("cuda").steps())
    assert {step["state"] for step in figures["steps"]} == {"skipped"}
    assert all("nvidia-smi is not installed" in step["reason"] for step in figures["steps"])


def test_a_driver_without_a_gpu_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.no_gpu() == "nvidia-smi lists no GPU"
    program(tmp_path / "nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'")
    assert gpu.no_gpu() == ""


def test_a_step_that_fails_or_is_skipped_does_not_stop_the_next_one() -> None:
    def fails(_: float) -> dict[str, Any]:
        raise Failed("it broke")

    def skips(_: float) -> dict[str, Any]:
        raise Skipped("no docker")

    def asks_too_long(_: float) -> dict[str, Any]:
        raise TimeoutError("nobody answers")

    steps = [Step("a", 9, fails), Step("b", 9, skips), Step("c", 9, asks_too_long), Step("d", 9, lambda s: {"limit": s})]
    rows = gpu.carried_out(steps, 60)
    assert [(row["state"], row["reason"]) for row in rows] == [
        ("failed", "it broke"),
        ("skipped", "no docker"),
        ("failed", "nobody answers"),
        ("done", ""),
    ]
    assert rows[-1]["figures"] == {"limit": 9}


def test_no_step_begins_when_the_time_is_over_nor_exceeds_what_is_left() -> None:
    (early,) = gpu.carried_out([Step("a", 500, lambda limit: {"limit": limit})], 20)
    assert 0 < early["figures"]["limit"] <= 20
    (late,) = gpu.carried_out([Step("b", 500, lambda _: {})], 0)
    assert late["state"] == "skipped" and "--minutes" in late["reason"]


def test_at_its_limit_a_step_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    with pytest.raises(Failed, match="did not end within 1 s"):
        gpu.ended([sys.executable, "-c", parent], os.environ, tmp_path / "log", 1.0)
    time.sleep(3.5)
    assert not mark.exists()


def test_a_failed_step_reports_its_last_line_and_the_log(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"exit code 3: out of memory \(see engine\.log\)"):
        gpu.ended(["sh", "-c", "echo loading >&2; echo out of memory >&2; exit 3"], os.environ, tmp_path / "engine.log", 20)


def test_figures_are_the_last_line_that_is_json() -> None:
    assert gpu.figures_in('{"a": 1}\n{"b": 2}\nEngine core ended\n{not json\n') == {"b": 2}
    with pytest.raises(Failed):
        gpu.figures_in("nothing\n[1]\n")


def test_the_interpreter_is_the_first_that_has_no_objection(tmp_path: Path) -> None:
    without = program(tmp_path / "without", "echo 'no CUDA here'")
    broken = program(tmp_path / "broken", "echo 'ImportError: libcuda' >&2; exit 1")
    able = program(tmp_path / "able", "exit 0")
    assert gpu.interpreter(None, [None, tmp_path / "absent", without, broken, able], "", "none") == str(able)
    with pytest.raises(Skipped, match="ImportError: libcuda"):
        gpu.interpreter(None, [tmp_path / "absent", broken, without], "", "none")
    with pytest.raises(Skipped, match="no CUDA here"):
        gpu.interpreter(without, [able], "", "none")
    with pytest.raises(Skipped, match="none installed"):
        gpu.interpreter(None, [tmp_path / "absent"], "", "none installed")


def snapshot(cache: Path, name: str, size: int, **config: object) -> Path:
    folder = cache / f"models--org--{name}" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 32_768, **config}))
    (folder / "tokenizer.json").write_text("{}")
    if size:
        (folder / "model.safetensors").write_bytes(b"x" * size)
    return folder


def test_the_largest_model_is_found_that_fits_and_has_full_attention(tmp_path: Path) -> None:
    snapshot(tmp_path, "small", 10)
    chosen = snapshot(tmp_path, "fits", 50, model_type="qwen3")
    snapshot(tmp_path, "large", 500)
    snapshot(tmp_path, "hybrid", 60, model_type="gemma3_text")
    snapshot(tmp_path, "quantised", 60, quantization_config={})
    snapshot(tmp_path, "window", 60, use_sliding_window=True)
    snapshot(tmp_path, "short", 60, max_position_embeddings=2_048)
    snapshot(tmp_path, "no-weights", 0)
    damaged = snapshot(tmp_path, "damaged", 60)
    (damaged / "config.json").write_text("[]")
    incomplete = snapshot(tmp_path, "incomplete", 60)
    (incomplete / "config.json").write_text('{"model_type": "llama"}')
    assert gpu.found_model([tmp_path / "absent", tmp_path], 100) == chosen
    assert gpu.found_model([tmp_path / "absent"]) is None


def test_the_cache_of_hugging_face_is_where_its_variables_say() -> None:
    assert gpu.caches({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == [Path("/a")]
    assert gpu.caches({"HF_HOME": "/b"}) == [Path("/b/hub")]
    assert gpu.caches({}) == [Path.home() / ".cache/huggingface/hub"]


def test_all_engines_get_the_same_prompts_and_too_little_room_for_them() -> None:
    first, again = (traffic(conversations=6, opening=40, further=16, vocabulary=50) for _ in range(2))
    assert first == again and len(first) == ROUNDS
    continued = [prompt for now, then in itertools.pairwise(first) for prompt in then if prompt[:-16] in now]
    assert 0 < len(continued) < 6 * (ROUNDS - 1)
    for scale in gpu.SCALES.values():
        sent = traffic(
            conversations=scale.conversations, opening=scale.opening, further=scale.further, vocabulary=gpu.FOUND_CONTEXT
        )
        most = max(len(prompt) for asked in sent for prompt in asked)
        assert most + REPLY <= gpu.FOUND_CONTEXT
        assert most < scale.blocks() * scale.block < max(sum(map(len, asked)) for asked in sent)


def test_the_sidecars_steps_import_only_what_its_gpu_image_has() -> None:
    """`requirements/gpu.txt` has no data sets and no simulator."""
    locked = (gpu.ROOT / "requirements" / "gpu.txt").read_text()
    installed = {re.sub("[-_.]+", "_", name) for name in re.findall(r"^([A-Za-z0-9_.-]+)==", locked, re.MULTILINE)}
    modules = "benchmarks.gpu_run, benchmarks.predict, testing.processes, lpc.model.inference"
    program = f"import sys, {modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=gpu.ROOT, capture_output=True, text=True, check=True)
    ours = {"benchmarks", "lpc", "lpc_apps", "lpc_cli", "testing", "eviction_client", "predictor_service"}
    inside = {"google": "protobuf", "grpc": "grpcio", "grpc_health": "grpcio_health_checking", "onnxruntime": "onnxruntime_gpu"}
    found = set(done.stdout.split()) - set(sys.stdlib_module_names) - ours
    absent = {name for name in found if inside.get(name, name) not in installed and not name.startswith("_")}
    assert absent <= {"cython_runtime", "grpc_tools", "sitecustomize"}  # Cython's and the Python's own; gRPC imports its tools


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gpu", "--engine-model", str(tmp_path)])
    assert done.exit_code != 0 and "has no config.json" in str(done.exception)
