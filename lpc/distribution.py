"""The source from which pip gets this package: the one place to change when a release is on a package index.

`make reference` then rewrites the commands of all pages, and the programs advise the new one (docs/contributing/publish.md).
"""

import re
from typing import Final

NAME: Final = "learned-prefix-cache"
SOURCE: Final = "."
"""`.`, a checkout, until a release is published; then `NAME`."""
_COMMAND: Final = re.compile(rf"(pip install (?:--[a-z-]+ )*)('?)(?:\.|{NAME})((?:\[[a-z,]+\])?)\2(?=[\s`,;)]|$)", re.MULTILINE)


def install(extras: str = "", options: str = "", source: str = SOURCE) -> str:
    """Return the command that installs extras, such as `sim,cluster`, and where to run it."""
    command = f"pip install {options}" + (f"'{source}[{extras}]'" if extras else source)
    return command if source == NAME else f"{command} in a checkout of {NAME}"


def commands(text: str) -> list[str]:
    """Return the commands of a page that install this package."""
    return [found[0] for found in _COMMAND.finditer(text)]


def from_source(text: str, source: str = SOURCE) -> str:
    """Return a page whose commands install this package from there."""
    return _COMMAND.sub(rf"\g<1>\g<2>{source}\g<3>\g<2>", text)
