"""The README's Python examples run."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_engine_example_runs() -> None:
    examples = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "ValueQueue" in block]
    assert len(examples) == 1
    exec(compile(examples[0], "README.md", "exec"), {})


def test_every_lpc_command_that_is_named_exists() -> None:
    from lpc.commands.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    named = set(re.findall(r"\blpc ([a-z]+)", README))
    assert named <= known


def test_the_simulators_page_lists_every_policy_with_its_rule() -> None:
    from lpc.simulator.policies import REGISTRY

    page = (Path(__file__).parents[2] / "docs/explanation/simulator.md").read_text().partition("\n## Policies\n")[2]
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|", page, re.MULTILINE))
    assert rows == {name: policy.rule for name, policy in REGISTRY.items()}
