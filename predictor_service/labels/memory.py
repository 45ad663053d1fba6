"""Which predictions came true: the sidecar labels its own, by recognising a later turn of the same conversation.

The rule. A turn waits under a name, and the conversation's next request knows that name:

- with a ``conversation_id`` the name is the id, and any other turn with this id is the next one;
- without one it is the last IDENTITY_PROMPTS user prompts, or all of a conversation with fewer. The next request shows the same
  prompts before its own. Where several turns wait under one name (two users who both begin with "hi"), the next one is that of
  the turn whose count fits, of several such of the one that waits longest: as many are labelled as did continue, if not always
  the right ones.

The same turn again (a retry, a regenerated answer) is the same turn: not a continuation, and no second row. Without an id it is
recognised by its text: two prompts or CERTAIN_CHARS characters make it the same one, a lone "hi" does not.

Every turn is labelled ``horizon_s`` after it arrived, even if the next one came at once. If those were labelled early, what is
dropped at a restart would all be turns that did not continue, and in the first hour every turn would seem to have continued.
For the same reason a full memory labels no new turn, rather than dropping the oldest, which are the least likely to continue.
The next turn of an unlabelled one is still recognised: such turns are remembered apart, the longest idle forgotten first.

Known errors. A turn is taken for the last one when its successor went to another sidecar, unless these tell each other of their
turns (`predictor_service.sightings`), or came after the horizon; when the caller edited the history, or shows fewer than WINDOW
prompts of a longer one; and when the served model's chat template writes something else into the last user message than into
earlier ones (Mistral's with a system prompt). An id avoids the last two.
Not labelled at all is what could never be recognised: plain prompts, and histories known to be cut that short, without an id.
"""

import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from lpc.model.artifact import Manifest
from lpc.model.conversation import UserTurns
from lpc.model.returns.memory import Past
from predictor_service.labels.names import LOOKED_AT, Names, names_of

CHUNK: Final = 1000
"""Turns labelled while the lock is held once."""

EXPIRE_INTERVAL_S: Final = 1.0
"""Seconds between looks for turns whose horizon has passed."""

Reason: TypeAlias = Literal["unidentified", "memory", "repeated", "shutdown"]
"""Why a prediction gets no label: its conversation cannot be recognised, there was no room for it, the same turn was asked
again, or the sidecar stopped before its horizon."""


class Foretold(NamedTuple):
    """What was answered of a turn.

    Attributes:
        probability: calibrated, as the engine got it.
        embedding: little-endian fp16; None where no label log wants it.
        tokens: that the model was given.
        manifest: of the model.
    """

    probability: float
    embedding: bytes | None
    tokens: int
    manifest: Manifest


class Waiting(NamedTuple):
    """A turn that other sidecars may see the next one of: the name that it waits under, in the fleet's hashes, and its own."""

    name: bytes
    turn: bytes


@dataclass(eq=False, slots=True)
class Turn:
    """A turn that was asked about. Names are keyed hashes of 16 bytes; no text.

    Attributes:
        name: under which it waits for the next one.
        text: of its prompts: the same for the same turn asked again.
        conversation: the same for all turns of a conversation that were recognised as such.
        asked_at: its arrival, seconds since the Unix epoch.
        turn_count, prompt_chars, history_chars, last_reply_chars: as `UserTurns` has them.
        prediction: None until it is answered, and for ever if it is not.
        next_at: the next turn's arrival; None until there is one.
        labelled: whether there was room for its label.
        past: what is known of the conversation up to this turn; at first, up to the one before.
        waits_as, waited_as: what other sidecars know this turn by, and knew the one before, if that was here.
    """

    name: bytes
    text: bytes
    conversation: bytes
    asked_at: float
    turn_count: int
    prompt_chars: int
    history_chars: int
    last_reply_chars: int
    foretold: Foretold | None = None
    next_at: float | None = None
    labelled: bool = True
    past: Past | None = None
    waits_as: Waiting | None = None
    waited_as: Waiting | None = None


class Label(NamedTuple):
    """What became of a turn that was answered. ``gap_s``: seconds between its arrival and the next one's; NaN: none came."""

    turn: Turn
    foretold: Foretold
    continues: bool
    gap_s: float


class TurnObserver:
    """Hears what happens to turns; subclasses override what they want to hear. Called from any thread: return at once."""

    def arrived(self, turn: Turn) -> None:
        """A turn arrived that was not there before."""

    def answered(self, turn: Turn) -> None:
        """A turn was answered, as it now says; for one that is asked again, again."""

    def returned(self, turn: Turn) -> None:
        """The next turn of a turn's conversation arrived, when it now says."""

    def labelled(self, label: Label) -> None:
        """The horizon of a turn that was answered has passed."""

    def forgotten(self, turn: Turn) -> None:
        """A turn was forgotten to make room: its next one will not be recognised."""

    def unlabelled(self, reason: Reason, count: int) -> None:
        """So many predictions get no label."""


class Labels:
    """Remembers turns until their horizon has passed, and tells what became of them. Thread-safe.

    Invariants: at most ``capacity`` turns that get a label, in order of arrival (give or take what overtook in the tokeniser's
    threads), and at most as many others that no later turn has claimed; under each name those that none has claimed, oldest
    first. Prompts and ids are kept as hashes only, with a key of this process.
    """

    def __init__(self, capacity: int, horizon_s: float, observers: Sequence[TurnObserver]) -> None:
        self.capacity = capacity
        self.horizon_s = horizon_s
        self._observers = observers
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque()
        self._unlabelled_turns: OrderedDict[Turn, None] = OrderedDict()
        self._waiting: dict[bytes, list[Turn]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def arrive(self, turns: UserTurns, conversation_id: str, at: float) -> Turn | None:
        """Note that a turn arrived; it claims the turn before it. None: its conversation cannot be recognised.

        Args:
            turns: with WINDOW prompts, if the conversation has as many.
            conversation_id: opaque; empty for none.
            at: seconds since the Unix epoch.
        """
        if not self.capacity:
            return None
        names = names_of(turns, conversation_id, self._key)
        if names is None:
            self._unlabelled("unidentified", 1)
            return None
        with self._lock:
            again = self._again(names, turns.turn_count)
            if again is not None:
                return again
            before = self._before(names, turns.turn_count)
            if before is not None:
                before.next_at = at
                self._stop_waiting(before)
            if before is not None:
                conversation = before.conversation
            else:  # others may begin with the same prompts
                conversation = names.own if names.by_id else os.urandom(len(names.own))
            turn = Turn(
                name=names.own,
                text=names.text,
                conversation=conversation,
                asked_at=at,
                turn_count=turns.turn_count,
                prompt_chars=len(turns.prompts[-1]),
                history_chars=turns.history_chars,
                last_reply_chars=turns.last_reply_chars,
                labelled=len(self._turns) < self.capacity,
                past=None if before is None else before.past,
                waited_as=None if before is None else before.waits_as,
            )
            self._waiting.setdefault(names.own, []).append(turn)
            forgotten: Turn | None = None
            if turn.labelled:
                self._turns.append(turn)
            else:
                self._unlabelled_turns[turn] = None
                if len(self._unlabelled_turns) > self.capacity:
                    forgotten = next(iter(self._unlabelled_turns))
                    self._stop_waiting(forgotten)
        # Outside the lock, as are all calls of observers: they may take a lock of their own.
        if before is not None:
            for observer in self._observers:
                observer.returned(before)
        if not turn.labelled:
            self._unlabelled("memory", 1)
            if forgotten is not None:
                for observer in self._observers:
                    observer.forgotten(forgotten)
            return turn
        for observer in self._observers:
            observer.arrived(turn)
        return turn

    def turn_of(self, prompt: str, conversation_id: str) -> int:
        """Return which turn of a conversation a prompt is, by its id and the turns that are remembered; 1 where none is.

        Args:
            prompt: the only one known of the turn.
            conversation_id: opaque; empty for none.
        """
        names = names_of(UserTurns((prompt,), 1, told_apart=False), conversation_id, self._key)
        if names is None:
            return 1
        with self._lock:
            waiting = self._waiting.get(names.own)
            if not waiting:
                return 1
            return waiting[-1].turn_count + (waiting[-1].text != names.text)

    def answered(self, turn: Turn, foretold: Foretold) -> None:
        """Note what a turn was answered; of several answers the last counts. A turn without one gets no label."""
        if not turn.labelled:
            return
        if turn.foretold is not None:
            self._unlabelled("repeated", 1)
        turn.foretold = foretold
        for observer in self._observers:
            observer.answered(turn)

    def returned_elsewhere(self, turn: Turn, at: float) -> None:
        """Note that the next turn of a turn's conversation arrived at another sidecar, at ``at``."""
        with self._lock:
            if turn.next_at is not None:
                return
            turn.next_at = at
            self._stop_waiting(turn)
        for observer in self._observers:
            observer.returned(turn)

    def repeated_elsewhere(self, turn: Turn) -> None:
        """Note that another sidecar has been asked the same turn before, so that it is that one's to label."""
        with self._lock:
            labelled, turn.labelled = turn.labelled, False
            self._stop_waiting(turn)
        if labelled:
            self._unlabelled("repeated", 1)

    def expire(self, now: float) -> None:
        """Label the turns whose horizon has passed at ``now``, seconds since the Unix epoch.

        An observer that raises misses that label only. The first such error is raised when all turns are labelled.
        """
        due: list[Turn] = []
        failure: Exception | None = None
        while True:
            with self._lock:
                while self._turns and self._turns[0].asked_at + self.horizon_s <= now and len(due) < CHUNK:
                    turn = self._turns.popleft()
                    if turn.next_at is None:
                        self._stop_waiting(turn)
                    due.append(turn)
                while self._unlabelled_turns:
                    oldest = next(iter(self._unlabelled_turns))
                    if oldest.asked_at + self.horizon_s > now:
                        break
                    self._stop_waiting(oldest)
            if not due:
                break
            for turn in due:
                if turn.foretold is not None:
                    gap = math.nan if turn.next_at is None else max(turn.next_at - turn.asked_at, 0.0)
                    continues = gap <= self.horizon_s
                    label = Label(turn, turn.foretold, continues, gap if continues else math.nan)
                    for observer in self._observers:
                        try:
                            observer.labelled(label)
                        except Exception as error:
                            failure = failure or error
            due.clear()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Forget all turns: what becomes of them nobody here will see."""
        with self._lock:
            known = sum(turn.foretold is not None for turn in self._turns)
            self._turns.clear()
            self._unlabelled_turns.clear()
            self._waiting.clear()
        self._unlabelled("shutdown", known)

    def _unlabelled(self, reason: Reason, count: int) -> None:
        for observer in self._observers:
            observer.unlabelled(reason, count)

    def _again(self, names: Names, turn_count: int) -> Turn | None:
        """Return the turn that waits already, if this is the same one."""
        if not names.certain:
            return None
        waiting = islice(self._waiting.get(names.own, ()), LOOKED_AT)
        return next((turn for turn in waiting if turn.text == names.text and turn.turn_count == turn_count), None)

    def _before(self, names: Names, turn_count: int) -> Turn | None:
        """Return the turn that waits for this one."""
        waiting = self._waiting.get(names.before) if names.before is not None else None
        if not waiting:
            return None
        # A caller that shows its last messages only, without a count, always has the same one: then the oldest.
        return next((turn for turn in islice(waiting, LOOKED_AT) if turn.turn_count == turn_count - 1), waiting[0])

    def _stop_waiting(self, turn: Turn) -> None:
        self._unlabelled_turns.pop(turn, None)
        waiting = self._waiting.get(turn.name, [])
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(turn.name, None)
