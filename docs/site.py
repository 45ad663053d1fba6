"""A hook of the documentation's site (mkdocs.yml): files outside `docs` are named, not linked, as the site does not hold them.

With the setting `repo_url` they become links into the repository. `tests/unit/test_links.py` checks that they exist.
"""

import posixpath
import re
from typing import Any, Final

LINK: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text without links that leave the folder `docs`."""

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        if path.startswith("docs/"):
            return link[0]
        if config.get("repo_url"):
            return f"[{link[1]}]({config['repo_url'].rstrip('/')}/blob/main/{path})"
        return f"{link[1]} (`{path}`)" if link[1] != path else f"`{path}`"

    return LINK.sub(replaced, markdown)
