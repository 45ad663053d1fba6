"""Published datasets of conversations, and your own logs as OpenAI chat messages: one loader each.

A loader has a path and a counter of skipped records as arguments. It raises the DatasetError of `reading.read`.
"""

from collections.abc import Iterator
from pathlib import Path

from lpc.logs.datasets.conversation import Conversation
from lpc.logs.datasets.reading import id_of, messages_of, read
from lpc.logs.records import Record, Skipped, WrongRecord


def load_arena(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations with model A of Chatbot Arena Conversations.

    33 thousand battles of two models with a vote, April to June 2023.

    Fields (https://huggingface.co/datasets/lmsys/chatbot_arena_conversations; paper: arXiv 2306.05685): question_id, model_a,
    model_b, winner, judge, conversation_a and conversation_b [{role, content}], turn, anony, language (a name: "English"),
    tstamp, openai_moderation, toxic_chat_tag.

    A record is one user who writes each prompt once to two models. Only conversation_a is read: conversation_b has the same
    user turns and the same end, so reading it too would count every user twice and weigh this dataset's turns double.

    The record ends with the vote, which counts as the conversation's end: what was written after it is not published.
    """

    def conversation(record: Record, _place: str) -> Conversation:
        return Conversation(id_of(record, "question_id"), messages_of(record["conversation_a"]))

    return read("arena", path, conversation, skipped)


def load_lmsys(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of LMSYS-Chat-1M.

    A million conversations with 25 models on the Vicuna demo and Chatbot Arena, April to August 2023.

    Fields (https://huggingface.co/datasets/lmsys/lmsys-chat-1m; paper: arXiv 2309.11998): conversation_id, model, conversation
    [{role, content}], turn, language (a name: "English"), openai_moderation, redacted. The publisher wrote NAME_1 and the like
    over personal names (redacted); such conversations are kept, since their turns are whole.
    """

    def conversation(record: Record, _place: str) -> Conversation:
        return Conversation(id_of(record, "conversation_id"), messages_of(record["conversation"]))

    return read("lmsys", path, conversation, skipped)


def load_wildchat(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of WildChat-1M and WildChat-4.8M.

    Conversations with ChatGPT that users gave in exchange for free access, from April 2023.

    Fields (https://huggingface.co/datasets/allenai/WildChat-1M and allenai/WildChat-4.8M; paper: arXiv 2405.01470):
    conversation_hash, model, timestamp, conversation [{role, content, language, turn_identifier, timestamp, redacted, toxic,
    hashed_ip, country, state, header; 4.8M also created, openai_id, token_counter, usage, ...}], turn, language (a name:
    "English"), openai_moderation, detoxify_moderation, toxic, redacted.

    conversation_hash is the hash of the contents, so equal conversations share it; turn_identifier is unique. The id here is
    the hash and the first turn's identifier, or its location in the file if there is none.

    The first release (allenai/WildChat) has conversation_id instead, as LMSYS-Chat-1M has: read it as `lmsys`.
    """

    def conversation(record: Record, place: str) -> Conversation:
        messages = messages_of(record["conversation"])
        turn = record["conversation"][0].get("turn_identifier")
        name = f"{id_of(record, 'conversation_hash')}/{place if turn is None else turn}"
        return Conversation(name, messages)

    return read("wildchat", path, conversation, skipped)


def load_openai(path: Path, skipped: Skipped) -> Iterator[Conversation]:
    """Yield the conversations of your own logs as OpenAI chat messages.

    One JSON object per line and conversation: `{"messages": [{role, content}, ...]}`.

    Content is a string, a list of parts whose texts are joined, as in `lpc predict`, or null in a message that only calls
    tools. Format: https://platform.openai.com/docs/api-reference/chat/create (messages). Optional: `id` or
    `conversation_id`.

    One record contains a conversation with all its messages. A gateway's request log repeats the history in each request, so
    every request except the last would be an example of a user who left. Therefore repeated ids are rejected.
    """
    seen: set[str] = set()

    def conversation(record: Record, place: str) -> Conversation:
        key = next((key for key in ("id", "conversation_id") if record.get(key) is not None), None)
        name = id_of(record, key) if key else place
        messages = messages_of(record["messages"], _text)
        if name in seen:
            raise WrongRecord("id repeated (write one record per conversation, with all its messages)")
        seen.add(name)
        return Conversation(name, messages)

    return read("openai", path, conversation, skipped)


def _text(message: Record) -> str:
    content = message.get("content")
    if content is None and message["role"] != "user":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise WrongRecord("content is not text")
    return "".join(_part(part) for part in content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        raise WrongRecord("a content part is not an object")
    text = part.get("text")
    if text is None and part.get("type") != "text":
        return ""  # an image, sound or file
    if not isinstance(text, str):
        raise WrongRecord("a content part's text is not text")
    return text
