"""ONNX Runtime is imported with its telemetry off, and by one module only."""

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ("lpc", "lpc_apps", "lpc_cli", "testing", "predictor_service", "response_cache", "benchmarks", "tests")
IMPORT = re.compile(r"^\s*(import onnxruntime\b|from onnxruntime\b)", re.MULTILINE)


def test_a_session_sends_no_telemetry_and_leaves_no_file(tmp_path: Path) -> None:
    # In CI it would be off by itself.
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    code = "from lpc.model.onnx_runtime import ort; import os; print(os.environ['ORT_DISABLE_TELEMETRY'], ort.__version__)"
    done = subprocess.run([sys.executable, "-c", code], env={**env, "TMPDIR": str(tmp_path)}, capture_output=True, check=True)
    assert done.stdout.startswith(b"1 ")
    assert not list(tmp_path.iterdir())


def test_one_module_imports_it() -> None:
    paths = [path for folder in FOLDERS for path in Path(folder).rglob("*.py")]
    assert [str(path) for path in paths if IMPORT.search(path.read_text())] == ["lpc/model/onnx_runtime.py"]
