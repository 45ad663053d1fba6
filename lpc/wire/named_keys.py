"""Files of ``name: 64 hexadecimal digits`` lines, as of tokens' digests and of keys; ``#`` begins a comment."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lpc.errors import LpcError

_LINE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s*([0-9a-fA-F]{64})")


def read_named_keys(path: Path, error: type[LpcError], *, line: str, how: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield where each line is (path and number, for messages), its name and its 32 bytes.

    Args:
        path: of the file.
        error: to raise where it cannot be read or is malformed; none of it is quoted, since it may hold a secret.
        line: what a line is, for its message.
        how: what to do about it.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror}; {how}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{path} is not UTF-8: {how}") from failure
    for number, content in enumerate(text.splitlines(), 1):
        content = content.partition("#")[0].strip()
        if not content:
            continue
        where = f"{path}, line {number}"
        match = _LINE.fullmatch(content)
        if match is None:
            raise error(
                f"{where}: expected `{line}`, a name of letters, digits, dots, dashes or underscores and 64 hexadecimal digits"
            )
        yield where, match[1], bytes.fromhex(match[2])
