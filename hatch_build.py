"""Build hooks: the typed gRPC stubs `lpc/v1/*_pb2*.py{,i}` and `lpc/cache/v1/*` from `proto/`, and the package's description.

They are build products and never committed. The pinned generator (see `build-system.requires`) emits code of
protobuf generation 6.31, which runs on every protobuf runtime that vLLM 0.32 and LMCache 0.5 both accept.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")
"""A link within the repository: its text and its address."""
IMAGE = re.compile(r"!\[([^\]]+)\]\((?!https?:)([^)\s]+)\)\s?")
"""A picture within the repository."""


def described(readme: str, repository: str) -> str:
    """Return the README for a package index, where links within the repository are dead.

    Args:
        readme: with links and pictures relative to the repository's root.
        repository: its address, to which these links lead then; empty: their texts stay, without links or pictures.
    """
    readme = IMAGE.sub(rf"![\1]({repository}/raw/main/\2) " if repository else "", readme)
    return LINK.sub(rf"[\1]({repository}/blob/main/\2)" if repository else r"\1", readme)


class Description(MetadataHookInterface):
    """Sets the description from README.md, and the addresses of the project."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls`."""
        repository = self.config["repository"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, repository)}
        pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
        metadata["urls"] = (
            {"Repository": repository, **{name: f"{repository}/blob/main/{page}" for name, page in pages.items()}}
            if repository
            else {}
        )


class GenerateStubs(BuildHookInterface):  # type: ignore[type-arg]
    """Runs protoc before a wheel or an editable install is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (the interface's)
        """Write the stubs and name them as part of the build.

        Each file is replaced as a whole, since `make test` builds two environments at a time.
        """
        root = Path(self.root)
        protos = sorted(str(p.relative_to(root / "proto")) for p in (root / "proto").rglob("*.proto"))
        with TemporaryDirectory(dir=root, prefix=".stubs-") as folder:
            subprocess.run(
                [
                    *(sys.executable, "-m", "grpc_tools.protoc", f"-I{root / 'proto'}"),
                    *(f"--python_out={folder}", f"--grpc_python_out={folder}"),
                    *(f"--mypy_out={folder}", f"--mypy_grpc_out={folder}"),
                    *protos,
                ],
                # If the build has no environment of its own, protoc finds its plug-in in the folder of Python.
                env={**os.environ, "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])},
                check=True,
            )
            for package in sorted({str(Path(proto).parent) for proto in protos}):
                made = Path(folder, package)
                (made / "__init__.py").write_text(f'"""Generated from proto/{package}; see hatch_build.py."""\n')
                (root / package).mkdir(parents=True, exist_ok=True)
                for stub in made.iterdir():
                    stub.replace(root / package / stub.name)
                build_data["artifacts"].append(f"/{package}/*.py*")
