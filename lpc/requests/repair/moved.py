"""Rules that move content from the head of a prompt to its end (safety B), so that what is behind it stays the same."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from lpc.requests.repair import statements
from lpc.requests.repair.copies import at
from lpc.requests.repair.places import head_paths, with_head
from lpc.requests.repair.rule import Change, Fields, Notes, Rule
from lpc.requests.repair.statements import Seen, Statement


class Moved(Rule):
    """Moves statements from the system prompt to the end of the last user's message, or into the tool's result behind it.

    A late system message would go to the head, be refused or vanish on a third of the templates, and text next to a tool's
    result ends the loop whose thoughts a template keeps (READS: docs/reference/what-costs-a-hit.md).
    """

    safety = "B"

    @staticmethod
    @abstractmethod
    def find(text: str, seen: Seen = None) -> Iterator[Statement]:
        """Yield the statements of a text that are to be moved, in order."""

    def apply(self, fields: Fields, notes: Notes) -> tuple[Fields, str]:
        """Return the body without its statements, and these."""
        left, texts, found = fields, list[str](), list[Change]()
        # From the end on, so that the paths of earlier texts stay.
        for path in reversed(head_paths(fields)):
            text = at(left, path)
            taken = list(self.find(text, notes.openings.of(text)))
            if not taken:
                continue
            pieces, done = list[str](), 0
            for one in taken:
                pieces.append(text[done : one.start])
                done = one.end
            rest = "".join([*pieces, text[done:]])
            without = with_head(left, path, rest)
            if without is None:
                continue
            left = without
            notes.openings.remove(text, rest, taken)
            texts = [*(one.text for one in taken), *texts]
            found = [*(Change(self.name, "system", "", one.text, value=text[slice(*one.value)]) for one in taken), *found]
        notes.changes.extend(found)
        return left, "\n".join(texts)


class MovesTime(Moved):
    """Moves the present time."""

    name = "move-time"
    change = "a time stamp or date goes to the end of the last user's message"
    pattern = "a line or sentence that begins with a label such as `Current time:` and has a date or time"
    find = staticmethod(statements.times)


class MovesId(Moved):
    """Moves ids that were drawn."""

    name = "move-id"
    change = "a request's or session's id goes to the end of the last user's message"
    pattern = "a line or sentence that begins with a label such as `Request ID:` and has a random value"
    find = staticmethod(statements.ids)


class MovesUser(Moved):
    """Moves what names the user."""

    name = "move-user"
    change = "the user's name, address, locale or time zone goes to the end of the last user's message"
    pattern = "a line or sentence that begins with a label such as `User:` or `Time zone:` and has an e-mail address or a value"
    find = staticmethod(statements.users)


class MovesCounter(Moved):
    """Moves counters."""

    name = "move-counter"
    change = "a counter goes to the end of the last user's message"
    pattern = "a line or sentence that begins with a label such as `Turn:` or `Tokens used:` and has a number"
    find = staticmethod(statements.counters)


class MovesDigest(Moved):
    """Moves digests."""

    name = "move-digest"
    change = "a digest goes to the end of the last user's message"
    pattern = "a line that begins with `x-anthropic-billing-header`, or with a label such as `cch=` or `hash:`"
    find = staticmethod(statements.digests)


class MovesTasks(Moved):
    """Moves lists of tasks."""

    name = "move-tasks"
    change = "a list of tasks goes to the end of the last user's message"
    pattern = "lines with boxes, `- [ ]` and `- [x]`, with their title or tags"
    find = staticmethod(statements.tasks)


MOVED: Final = (MovesTime(), MovesId(), MovesUser(), MovesCounter(), MovesDigest(), MovesTasks())
