"""Pages that commands write: one file that loads nothing, and in which a browser runs no script.

Jinja2 escapes all text, which may come from a log.
"""

from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from lpc.files import writing_output
from lpc_apps.simulator.amounts import about, percent, tokens


def write_html(path: Path, template: str, **values: Any) -> None:
    """Write a page of a template of this package, which extends `page.html`.

    Args:
        values: of the template; ``command``: the command that made the page.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # an optional package

    environment = Environment(
        loader=FunctionLoader(lambda name: files("lpc_cli").joinpath(name).read_text("utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(percent=percent, tokens=tokens, about=about)
    page = environment.get_template(template).render(today=date.today().isoformat(), **values)
    with writing_output(path) as file:
        file.write(page.encode(errors="surrogateescape"))  # a file's name need not be text
