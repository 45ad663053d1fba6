"""The README is short and its commands exist; the Python examples of the documentation run."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = (ROOT / "docs/how-to/use-from-python.md").read_text()


def test_the_engine_example_runs() -> None:
    examples = [block for block in re.findall(r"```python\n(.*?)```", EXAMPLES, re.DOTALL) if "FreeQueue" in block]
    assert len(examples) == 1
    exec(compile(examples[0], "use-from-python.md", "exec"), {})


def test_the_readme_names_the_test_command() -> None:
    assert "    make test " in README


PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    ROOT.glob("docs/**/*.md")
)
START = re.compile(r"(?:^ {4,}|`|&& |\| |\$ |^)lpc (?=[a-z-])", re.MULTILINE)
FOREIGN = {"lmcache coordinator"}
"""Commands that pass their options on to another program."""


def calls(text: str) -> list[str]:
    """Return what follows `lpc` in each command of a page, to the end of the code."""
    text = text.replace("\\\n", " ")
    return [re.split(r"[`\n;#]| && | > | < ", text[found.end() :], maxsplit=1)[0] for found in START.finditer(text)]


def unknown(call: str) -> str | None:
    """Return a command or option in a call that does not exist; None if all exist."""
    from typer.main import get_command

    from lpc_cli.cli import app

    command: Any = get_command(app)
    path: list[str] = []
    words = call.replace(" | lpc ", "\0").partition("\0")[0].split()
    while words and hasattr(command, "commands"):
        alternatives = [words[0], *(word for bar, word in zip(words[1::2], words[2::2], strict=False) if bar == "|")]
        for name in alternatives:
            if re.fullmatch("[a-z][a-z-]*", name) and name not in command.commands:
                return " ".join([*path, name])
        if len(alternatives) > 1 or words[0] not in command.commands:
            return None
        path.append(words[0])
        command = command.commands[words.pop(0)]
    if " ".join(path) in FOREIGN:
        return None
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "-h"}
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words).partition(" | ")[0])
    return next((f"{' '.join(path)} {option}" for option in options if option not in known), None)


def test_a_command_or_option_that_does_not_exist_is_found() -> None:
    assert unknown("nonsense") == "nonsense"
    assert unknown("models list | pull") == "models pull"
    assert unknown("models nonsense --force") == "models nonsense"
    assert unknown("report --engines http://h") == "report --engines"
    assert unknown("report --engine http://h --json | jq --foreign") is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_lpc_command_and_option_that_a_page_names_exists(page: Path) -> None:
    assert [name for call in calls(page.read_text()) if (name := unknown(call)) is not None] == []


def test_the_pages_name_commands() -> None:
    named = {call.split()[0] for page in PAGES for call in calls(page.read_text())}
    assert {"serve", "simulate", "doctor", "train", "models"} <= named


def test_the_fleets_page_lists_every_router_and_knowledge_with_its_rule() -> None:
    from lpc_apps.simulator.fleet.knowledge import KINDS
    from lpc_apps.simulator.fleet.routers import REGISTRY

    page = (ROOT / "docs/how-to/simulate-a-fleet.md").read_text().partition("\n## Routers\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)(?::[A-Z]+)?` \| (.+?) \|", page, re.MULTILINE))
    assert rows == {one.name: one.rule for one in (*REGISTRY.values(), *KINDS)}


def test_the_simulators_page_lists_every_policy_with_its_rule() -> None:
    from lpc_apps.simulator.policies import REGISTRY

    page = (ROOT / "docs/reference/policies.md").read_text().partition("\n## Policies\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", page, re.MULTILINE))
    assert rows == {name: policy.rule for name, policy in REGISTRY.items()}
