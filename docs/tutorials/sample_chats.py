"""Sends the traffic of a rehearsal to an engine for two minutes, with made-up text.

The engine is at localhost:8000, or at OPENAI_BASE_URL.

- Users of a chat with one system prompt, who mostly ask again after some seconds.
- Long documents, each sent once, which push the chats out of a least-recently-used cache.
"""

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
from sample_log import text

ENGINE = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1")
LASTS_S = 120
USERS, READERS = 8, 2
PAUSE_S = 3.0
"""Mean time before a user asks again, and between a reader's documents."""
ASKS_AGAIN = 0.8
SYSTEM = text(random.Random(0), 20)


def chat(rng: random.Random, ask: Callable[..., str]) -> None:
    """Run a conversation."""
    messages = [{"role": "system", "content": SYSTEM}]
    while True:
        messages.append({"role": "user", "content": text(rng, 20)})
        messages.append({"role": "assistant", "content": ask(messages)})
        if rng.random() >= ASKS_AGAIN or len(messages) > 12:
            return
        time.sleep(rng.expovariate(1 / PAUSE_S))


def document(rng: random.Random, ask: Callable[..., str]) -> None:
    """Send a document."""
    ask([{"role": "user", "content": "Summarise this document. " + text(rng, 200)}])
    time.sleep(rng.expovariate(1 / PAUSE_S))


def main() -> None:
    """Send both kinds of requests, and print how many."""
    client = openai.OpenAI(base_url=ENGINE, api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    ends = time.monotonic() + LASTS_S

    def ask(messages: list[dict[str, str]]) -> str:
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32, temperature=0)
        return answer.choices[0].message.content

    def work(number: int) -> int:
        rng, sent = random.Random(number), 0
        while time.monotonic() < ends:
            (chat if number < USERS else document)(rng, ask)
            sent += 1
        return sent

    with ThreadPoolExecutor(USERS + READERS) as threads:
        sent = list(threads.map(work, range(USERS + READERS)))
    print(f"{sum(sent[:USERS])} conversations and {sum(sent[USERS:])} documents were sent")


if __name__ == "__main__":
    main()
