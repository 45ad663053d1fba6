"""WildChat: public conversations with ChatGPT, with the times of the replies and hashed addresses of the users.

Source: https://huggingface.co/datasets/allenai/WildChat-1M (Zhao et al., ICLR 2024). A record is a conversation. The only times
are those at which replies ended, so a request's time is its reply's. Pauses are right except for a reply's duration.
The first release has no time for each reply: read it as `conversations`.
"""

from collections.abc import Iterator

from lpc_apps.logs.chats.body import prompt_of, reply_of
from lpc_apps.logs.chats.fields import first_of, moment, name_of
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.records import OtherRecord, Record, WrongRecord


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return "conversation_hash" in record and "conversation" in record


def read(record: Record) -> Iterator[LoggedRequest | WrongRecord]:
    """Yield the requests of a conversation; a turn without a reply, or without its time, as WrongRecord. Raises WrongRecord."""
    messages = record.get("conversation")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise WrongRecord("no conversation")
    # A hash is of the content: conversations with equal content share it.
    first = messages[0] if messages else {}
    session = name_of(first.get("turn_identifier")) or name_of(record.get("conversation_hash"))
    user = name_of(first_of(record, "hashed_ip")) or name_of(first.get("hashed_ip")) or ""
    for at, message in enumerate(messages):
        if message.get("role") != "assistant":
            if at + 1 == len(messages):
                yield OtherRecord("no reply")
            continue
        try:
            time = moment(message.get("timestamp"))
            prompt = prompt_of({"messages": [_plain(one) for one in messages[:at]], "model": record.get("model")})
            reply = reply_of(_plain(message))
            yield LoggedRequest(time, prompt.messages, (), reply, session=session, user=user, scope=prompt.scope)
        except WrongRecord as wrong:
            yield wrong


def _plain(message: Record) -> Record:
    return {"role": message.get("role"), "content": message.get("content")}
