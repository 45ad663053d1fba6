"""How the user called this program, for commands that are shown to be copied."""

import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """Return the words that run `lpc` again from the same folder, as it is installed here."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m lpc"
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    try:
        return shlex.quote(str(called.resolve().relative_to(Path.cwd())))
    except ValueError:
        return shlex.quote(str(called.resolve()))
