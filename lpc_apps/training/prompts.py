"""Conversations on which every export is compared with the fp32 reference: short and long, in several languages."""

from typing import Final

from lpc.model.conversation import UserTurns

_LOG: Final = "\n".join(
    f'203.0.113.{n} - - [07/Mar/2025:16:{n % 60:02d}:45 +0000] "GET /items/{n * 37} HTTP/1.1" {200 + n % 5} {n * 113}'
    for n in range(30)
)
_TABLE: Final = "\n".join(
    f"{n};article {n * 7 % 53};{n * 19 % 211}.{n % 100:02d};{'paid' if n % 3 else 'open'}" for n in range(60)
)

_TEXTS: Final[tuple[tuple[str, ...], ...]] = (
    ("Hi",),
    ("What is the capital of Australia?",),
    ("Thank you, that is all!",),
    ("Write a limerick about a cat that is afraid of mice.", "Now one about a dog."),
    ("Explain the difference between a process and a thread.", "And a coroutine?", "Which one should I use for a web crawler?"),
    ("def median(values):\n    values.sort()\n    return values[len(values) // 2]\n\nWhat is wrong with this?",),
    ("SELECT name, COUNT(*) FROM orders GROUP BY customer_id; why is this refused?", "ERROR 1055 (42000)", "ok it works now"),
    (f"Which of these requests came from a crawler?\n{_LOG}",),
    (f"Add up what is still open:\n{_TABLE}", "And by article, as a table please"),
    ("Wie lange muss ein Hefeteig gehen, wenn es in der Küche nur 17 Grad hat?", "Geht das auch über Nacht im Kühlschrank?"),
    ("Écris un courriel à mon propriétaire : le chauffage est en panne depuis trois jours.", "Plus ferme, s'il te plaît."),
    ("¿Cuáles son las mejores rutas de senderismo cerca de Granada en invierno?",),
    ("我想学习做菜，应该从哪些简单的家常菜开始？", "番茄炒蛋怎么做？", "谢谢"),
    ("日本語で自己紹介の例文を三つ作ってください。", "もっと丁寧な言い方にしてください。"),
    ("Напиши план тренировок на неделю для начинающего бегуна.",),
    ("اكتب لي رسالة شكر قصيرة لمعلمتي.",),
    ("मुझे दिल्ली से जयपुर जाने का सबसे अच्छा तरीका बताइए।",),
    ("Translate 'the early bird catches the worm' into Finnish, Polish and Turkish.", "Which of them say it the same way?"),
    ("continue",),
    ("🙂👍",),
    ("Act as an interviewer for a job as a data engineer. Ask one question at a time.", *("I would use a queue.",) * 4),
    ("Solve 3x² + 12x + 9 = 0 and show each step.", "Why do you divide by 3 first?"),
    (
        f"{_LOG[:900]}\n\nParse these lines in Rust.",
        "Without a regex please.",
        f"It fails on:\n{_TABLE[:700]}",
        "Still fails.",
        "Fixed!",
    ),
    ("Summarise the plot of Hamlet in exactly fifty words.",),
)

PROMPTS: Final = tuple(UserTurns(texts, len(texts)) for texts in _TEXTS)
