"""Parses a Dockerfile."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass
class Stage:
    """One FROM and its instructions, after those of the stage that it names: (instruction, its text on one line)."""

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
            stage = found[alias] = Stage(base, alias, list(found[base].lines) if base in found else [])
        elif stage is None:
            assert name == "ARG"
            key, value = text.split("=", 1)
            arguments[key] = value
        else:
            stage.lines.append((name, text))
    return arguments, found
