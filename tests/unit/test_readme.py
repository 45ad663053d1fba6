"""The README is short and its commands exist; the Python examples of the documentation run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = (ROOT / "docs/how-to/use-from-python.md").read_text()


def test_the_engine_example_runs() -> None:
    examples = [block for block in re.findall(r"```python\n(.*?)```", EXAMPLES, re.DOTALL) if "ValueQueue" in block]
    assert len(examples) == 1
    exec(compile(examples[0], "use-from-python.md", "exec"), {})


def test_the_readme_has_at_most_600_words_and_names_the_test_command() -> None:
    assert len(README.split()) <= 600
    assert "    make test " in README


def test_every_lpc_command_that_is_named_exists() -> None:
    from lpc_apps.commands.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    pages = [README, *(path.read_text() for path in ROOT.glob("docs/**/*.md"))]
    named = {name for page in pages for name in re.findall(r"(?:^    |`|&& |\n)lpc ([a-z]+)", page)}
    assert {"serve", "simulate", "doctor", "train"} <= named
    assert named <= known


def test_the_simulators_page_lists_every_policy_with_its_rule() -> None:
    from lpc_apps.simulator.policies import REGISTRY

    page = (ROOT / "docs/reference/policies.md").read_text().partition("\n## Policies\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", page, re.MULTILINE))
    assert rows == {name: policy.rule for name, policy in REGISTRY.items()}
