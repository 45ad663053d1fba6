"""Parses a Dockerfile, and runs a stage's COPY, ENV and RUN lines below a folder, without a container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("/opt/lpc", "/wheel", "/models", "/src", "/run/lpc", "/cache", "/secrets", "/scratch")
"""Folders of the image in our lines. They are replaced by folders below the root."""
OF_THE_SYSTEM = {"groupadd", "useradd", "install", "apt-get", "rm", "ldconfig"}
"""Commands that change the system. They are skipped."""


@dataclass
class Stage:
    """One FROM and its instructions: (instruction, its text with line continuations joined)."""

    base: str
    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, instruction: str) -> list[str]:
        return [text for name, text in self.lines if name == instruction]

    def command(self, instruction: str) -> list[str]:
        """Return the exec form of the last CMD, ENTRYPOINT or HEALTHCHECK."""
        text = self.texts(instruction)[-1]
        command = json.loads(text[text.index("[") :])
        assert isinstance(command, list)
        return command

    def env(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for text in self.texts("ENV") for pair in shlex.split(text))


def instructions(text: str) -> Iterator[tuple[str, str]]:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()


def stages(path: Path = ROOT / "Dockerfile") -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the global build arguments and the stages by name."""
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, text in instructions(path.read_text()):
        if name == "FROM":
            base, _, alias = text.partition(" AS ")
            stage = found[alias] = Stage(base, alias)
        elif stage is None:
            assert name == "ARG"
            key, value = text.split("=", 1)
            arguments[key] = value
        else:
            stage.lines.append((name, text))
    return arguments, found


def below(root: Path, text: str) -> str:
    """Replace the image's folders in a command by folders below a root on this machine."""
    return re.sub(rf"(?<![\w.]){'(' + '|'.join(OURS) + ')'}(?=[/\s\"':;]|$)", rf"{root}\1", text)


def carry_out(stage: Stage, root: Path, copied: dict[str, Path]) -> None:
    """Run a stage's COPY and RUN lines below `root`. `copied`: roots of the stages that it copies from.

    Raises subprocess.CalledProcessError if a command fails.
    """
    root.mkdir(parents=True, exist_ok=True)
    tools = root / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "python").exists():
        (tools / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3.11")
    env = {
        k: v for k, v in os.environ.items() if k in {"HOME", "LANG", "SSL_CERT_FILE"} or k.lower().startswith(("pip_", "http"))
    }
    path = f"{tools}:/usr/bin:/bin"
    cwd = root
    for name, text in stage.lines:
        if name == "WORKDIR":
            cwd = Path(below(root, text))
            cwd.mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            for pair in shlex.split(text):
                key, value = pair.split("=", 1)
                env[key] = below(root, value).replace("$PATH", path)
            path = env.get("PATH", path)
        elif name == "ARG" and "=" in text:
            key, value = text.split("=", 1)
            env[key] = value
        elif name == "COPY":
            copy(text, cwd, root, copied)
        elif name == "RUN":
            kept = [part for part in text.split("&& ") if part.split()[0] not in OF_THE_SYSTEM]
            if kept:
                command = below(root, "&& ".join(kept))
                print(f"== {stage.name}: {command}", flush=True)
                subprocess.run(["sh", "-ec", command], cwd=cwd, env={"PATH": path, **env}, check=True)


def copy(text: str, cwd: Path, root: Path, copied: dict[str, Path]) -> None:
    words = text.split()
    options = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    place = Path(below(root, target)) if target.startswith("/") else cwd / target
    origin = next((copied[option.partition("=")[2]] for option in options if option.startswith("--from=")), None)
    for source in sources:
        path = Path(below(origin, source)) if origin else ROOT / source
        if path.is_dir():
            shutil.copytree(path, place, dirs_exist_ok=True, symlinks=True)
        else:
            into = place / path.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into)
