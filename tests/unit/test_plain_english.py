"""README, docs, and the strings and comments of the code keep to those rules of plain English that a pattern can check."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
MOST_WORDS = 30
PACKAGES = ("eviction_client", "predictor_service", "response_cache", "lpc", "lpc_apps", "lpc_cli")
PHRASES = re.compile(
    r"\b(?:(?<!there )(?:is|are) no(?! longer)|told|choose of|in vain|beside|mend(?:s|ed|ing)?|reckon\w*|whoever|anew"
    r"|foret(?:ell|ells|old|elling))\b|, too\b(?! \w)",
    re.IGNORECASE,
)


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and table cells of a page, without code, addresses of links, and headings."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "\n\n", text)
    text = re.sub(r"(?m)^(?: {4}|\t).*$", lambda line: "" if not re.match(r" +(?:[-*]|\d+\.) ", line[0]) else line[0], text)
    text = re.sub(r"(?m)^#.*$", "\n\n", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "x", text.replace("<br>", "\n\n"))
    text = re.sub(r"(?m)^ *(?:[-*]|\d+\.) ", "\n\n", text)
    text = re.sub(r"(?m)^(\|.*)$", r"\n\n\1\n\n", text)
    for part in re.split(r"\n\s*\n", text):
        cells = part.strip().strip("|").split("|") if part.strip().startswith("|") else [part]
        for cell in cells:
            yield " ".join(cell.split())


def said(code: str) -> Iterator[str]:
    """Yield the strings and comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield " ".join(token.string.split())


def faults(text: str) -> list[str]:
    """Return what a page says against the rules."""
    found = []
    for part in prose(text):
        found += [f"{match[0]!r} in: {part[:90]}" for match in PHRASES.finditer(part)]
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+", part):
            words = re.findall(r"[^\W\d_][\w'’-]*", sentence)
            if len(words) > MOST_WORDS:
                found.append(f"{len(words)} words: {sentence[:120]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    assert faults(page.read_text()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_code_says_nothing_in_stock_phrases(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r} in {text[:90]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
        for text in said(path.read_text())
        for match in PHRASES.finditer(text)
    ]
    assert found == []


def test_a_fault_in_code_is_found() -> None:
    code = 'told = 1  # whoever calls\ndef f():\n    """It is no date."""\n'
    assert [match[0] for text in said(code) for match in PHRASES.finditer(text)] == ["whoever", "is no"]


@pytest.mark.parametrize(
    "text",
    ["It is no date.", "- The engine is\n  told.", "| a | in vain |", "word " * 31 + "end."],
)
def test_a_fault_is_found(text: str) -> None:
    assert len(faults(text)) == 1


def test_code_and_links_are_not_prose() -> None:
    assert faults("[a](beside.md) `whoever`\n\n    anew\n\n```\ntold\n```\n\nA recommended amendment. " + "`x` " * 20) == []
