"""Build hook: generates the typed gRPC stubs `lpc/v1/*_pb2*.py{,i}` and `lpc/cache/v1/*` from `proto/`.

They are build products and never committed. The pinned generator (see `build-system.requires`) emits code of
protobuf generation 6.31, which runs on every protobuf runtime that vLLM 0.32 and LMCache 0.5 both accept.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateStubs(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc before a wheel or an editable install is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (the interface's)
        """Write the stubs and name them as part of the build."""
        root = Path(self.root)
        protos = sorted(str(p.relative_to(root / "proto")) for p in (root / "proto").rglob("*.proto"))
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"-I{root / 'proto'}"),
                *(f"--python_out={root}", f"--grpc_python_out={root}"),
                *(f"--mypy_out={root}", f"--mypy_grpc_out={root}"),
                *protos,
            ],
            # protoc finds its plug-in beside Python, where the build has no environment of its own.
            env={**os.environ, "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])},
            check=True,
        )
        for package in sorted({str(Path(proto).parent) for proto in protos}):
            (root / package / "__init__.py").write_text(f'"""Generated from proto/{package}; see hatch_build.py."""\n')
            build_data["artifacts"].append(f"/{package}/*.py*")
