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

Known errors. A turn is taken for the last one when its successor went to another sidecar, unless these share their turns
(`predictor_service.sharing`), or came after the horizon; when the caller edited the history, or shows fewer than WINDOW
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
from lpc.model.returns.facts import Facts
from lpc.model.returns.hazards import EDGES
from lpc.model.returns.memory import NO_PAST, Arrived
from predictor_service.labels.names import LOOKED_AT, Names, names_of

CHUNK: Final = 1000
"""Turns labelled while the lock is held once."""

EXPIRE_INTERVAL_S: Final = 1.0
"""Seconds between looks for turns whose horizon has passed."""

LATE_S: Final = float(EDGES[-1])
"""Age until which a return to a turn with an id is recognised: that of the last interval of a return curve."""

Reason: TypeAlias = Literal["unidentified", "memory", "repeated", "shutdown"]
"""Why a prediction gets no label: its conversation cannot be recognised, there was no room for it, the same turn was asked
again, or the sidecar stopped before its horizon."""


class Forecast(NamedTuple):
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


@dataclass(eq=False, slots=True, kw_only=True, weakref_slot=True)
class Turn(Arrived):
    """A turn that was asked about: all that the sidecar keeps of it. Names are keyed hashes of 16 bytes; no text.

    Attributes:
        name: under which it waits for the next one; empty if it could not be recognised again.
        text: of its prompts: the same for the same turn asked again.
        by_id: the caller named the conversation.
        turn_count, prompt_chars, history_chars, last_reply_chars: as `UserTurns` has them.
        forecast: None until it is answered.
        labelled: whether it gets a label.
        shared_as, follows: the ids by which the fleet knows this turn, and knew the one before, if that was here.
    """

    name: bytes
    text: bytes
    by_id: bool
    turn_count: int
    prompt_chars: int
    history_chars: int
    last_reply_chars: int
    forecast: Forecast | None = None
    labelled: bool = True
    shared_as: bytes = b""
    follows: bytes = b""


class Label(NamedTuple):
    """What became of a turn that was answered. ``gap_s``: seconds between its arrival and the next one's; NaN: none came."""

    turn: Turn
    forecast: Forecast
    continues: bool
    gap_s: float


class TurnObserver:
    """Is notified of what happens to turns; subclasses override what they need. Called from any thread: return at once."""

    def returned(self, turn: Turn) -> None:
        """The next turn of a turn's conversation arrived, when it now says."""

    def labelled(self, label: Label) -> None:
        """The horizon of a turn that was answered has passed."""

    def forgotten(self, turn: Turn) -> None:
        """A turn was forgotten to make room: its next one will not be recognised."""

    def unlabelled(self, reason: Reason, count: int) -> None:
        """So many predictions get no label."""


class Labels:
    """Remembers turns, and notifies its observers of what became of them. Thread-safe.

    Invariants: at most ``capacity`` turns that get a label, in order of arrival (give or take what overtook in the tokeniser's
    threads) until their horizon has passed; at most as many unlabelled ones that no later turn has claimed; and at most as many
    with an id whose horizon has passed. Under each name those that none has claimed, oldest first. Prompts and ids are kept as
    hashes only, with a key of this process.
    """

    def __init__(self, capacity: int, horizon_s: float, observers: Sequence[TurnObserver]) -> None:
        self.capacity = capacity
        self.horizon_s = horizon_s
        self._observers = observers
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque()
        self._unlabelled_turns: OrderedDict[Turn, None] = OrderedDict()
        self._late: OrderedDict[Turn, None] = OrderedDict()
        self._waiting: dict[bytes, list[Turn]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def arrive(
        self, turns: UserTurns, conversation_id: str, at: float, facts: Facts | None = None, opening: bytes = b""
    ) -> Turn:
        """Note that a turn arrived; it claims the turn before it. A turn that cannot be recognised is not remembered.

        Args:
            turns: with WINDOW prompts, if the conversation has as many.
            conversation_id: opaque; empty for none.
            at: seconds since the Unix epoch.
            facts, opening: of the turn, without what the turns before tell.
        """
        names = names_of(turns, conversation_id, self._key) if self.capacity else None
        turn = Turn(
            name=b"" if names is None else names.own,
            text=b"" if names is None else names.text,
            by_id=names is not None and names.by_id,
            conversation=b"",
            asked_at=at,
            facts=Facts(turns.turn_count) if facts is None else facts,
            opening=opening,
            turn_count=turns.turn_count,
            prompt_chars=len(turns.prompts[-1]),
            history_chars=turns.history_chars,
            last_reply_chars=turns.last_reply_chars,
            labelled=names is not None,
        )
        if names is None:
            if self.capacity:
                self._unlabelled("unidentified", 1)
            turn.follow(NO_PAST)
            return turn
        with self._lock:
            again = self._again(names, turns.turn_count)
            if again is not None:
                return again
            before = self._before(names, turns.turn_count)
            if before is not None:
                before.next_at = at
                self._stop_waiting(before)
                turn.conversation, turn.follows = before.conversation, before.shared_as
            else:  # others may begin with the same prompts
                turn.conversation = names.own if names.by_id else os.urandom(len(names.own))
            turn.follow(NO_PAST if before is None else before.past)
            self._waiting.setdefault(names.own, []).append(turn)
            turn.labelled = len(self._turns) < self.capacity
            forgotten: Turn | None = None
            if turn.labelled:
                self._turns.append(turn)
            else:
                self._unlabelled_turns[turn] = None
                if len(self._unlabelled_turns) > self.capacity:
                    forgotten = next(iter(self._unlabelled_turns))
                    self._stop_waiting(forgotten)
        # Outside the lock, as are all calls of observers: they may take a lock of their own.
        for observer in self._observers:
            if before is not None:
                observer.returned(before)
            if forgotten is not None:
                observer.forgotten(forgotten)
        if not turn.labelled:
            self._unlabelled("memory", 1)
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

    def answered(self, turn: Turn, forecast: Forecast) -> None:
        """Note what a turn was answered; of several answers the last counts. A turn without one gets no label."""
        if not turn.labelled:
            return
        if turn.forecast is not None:
            self._unlabelled("repeated", 1)
        turn.forecast = forecast

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
            labelled, turn.labelled, turn.conversation = turn.labelled, False, b""
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
                    self._is_late(turn)
                    due.append(turn)
                while self._unlabelled_turns and (turn := next(iter(self._unlabelled_turns))).asked_at + self.horizon_s <= now:
                    self._is_late(turn)
                while self._late and (turn := next(iter(self._late))).asked_at + LATE_S <= now:
                    self._stop_waiting(turn)
            if not due:
                break
            for turn in due:
                if turn.forecast is not None:
                    gap = math.nan if turn.next_at is None else max(turn.next_at - turn.asked_at, 0.0)
                    continues = gap <= self.horizon_s
                    label = Label(turn, turn.forecast, continues, gap if continues else math.nan)
                    turn.forecast = None
                    for observer in self._observers:
                        try:
                            observer.labelled(label)
                        except Exception as error:
                            failure = failure or error
            due.clear()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Forget all turns: this process will not see what becomes of them."""
        with self._lock:
            known = sum(turn.forecast is not None for turn in self._turns)
            self._turns.clear()
            self._unlabelled_turns.clear()
            self._late.clear()
            self._waiting.clear()
        self._unlabelled("shutdown", known)

    def _unlabelled(self, reason: Reason, count: int) -> None:
        for observer in self._observers:
            observer.unlabelled(reason, count)

    def _again(self, names: Names, turn_count: int) -> Turn | None:
        """Return the turn that waits already, if this is the same one."""
        if not names.certain:
            return None
        waiting = (turn for turn in islice(self._waiting.get(names.own, ()), LOOKED_AT) if turn not in self._late)
        return next((turn for turn in waiting if turn.text == names.text and turn.turn_count == turn_count), None)

    def _before(self, names: Names, turn_count: int) -> Turn | None:
        """Return the turn that waits for this one."""
        waiting = self._waiting.get(names.before) if names.before is not None else None
        if not waiting:
            return None
        # A caller that shows its last messages only, without a count, always has the same one: then the oldest.
        return next((turn for turn in islice(waiting, LOOKED_AT) if turn.turn_count == turn_count - 1), waiting[0])

    def _is_late(self, turn: Turn) -> None:
        """A turn's horizon has passed: its next one counts for the return model only, and only if an id makes it certain."""
        if turn.next_at is not None or not turn.by_id:
            self._stop_waiting(turn)
            return
        self._unlabelled_turns.pop(turn, None)
        self._late[turn] = None
        if len(self._late) > self.capacity:
            self._stop_waiting(next(iter(self._late)))

    def _stop_waiting(self, turn: Turn) -> None:
        self._unlabelled_turns.pop(turn, None)
        self._late.pop(turn, None)
        waiting = self._waiting.get(turn.name, [])
        if turn in waiting:
            waiting.remove(turn)
        if not waiting:
            self._waiting.pop(turn.name, None)
