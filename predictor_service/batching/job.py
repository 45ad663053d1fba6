"""The record of one conversation in the sidecar, from its permit to its answer."""

import asyncio
from dataclasses import dataclass, field

from lpc.model.features import ModelInput
from lpc.model.inference import Model
from lpc.model.returns.memory import WatchedTurn
from lpc.v1 import predictor_pb2 as pb


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """A conversation, from its permit to its answer. Reading an attribute before its writer has set it raises AttributeError.

    The text is not kept beyond the preparation, because a full queue of long prompts would hold it twice.

    Each writer begins after the previous one has finished:

    | attributes | writer |
    |---|---|
    | `model`, `deadline`, `conversation`, `client` | the call that holds the permit |
    | `turn`, `has_text`, `features`, `tokenize_us` | a thread of `Preparation`; a text to embed has `features` only |
    | `embeds`, `future`, `queued_at` | `Batcher` and its queue |
    | `probability`, `model_log_odds`, `embedding`, `reuse_group` | a thread of `Inference` |
    | `queue_us`, `infer_us` | `Batcher`, which then resolves `future` |

    Attributes:
        model: the only model that can run the features, because its tokenizer produces them.
        deadline: seconds on the event loop's clock; infinite: no deadline.
        conversation: the conversation as received; empty: a text to embed.
        client: name of the client that sent it.
        turn: the turn as recorded by `TurnTracker`, whose reuse group is needed; None: no group is needed.
        has_text: whether the conversation has user text. Otherwise its prediction is not labelled.
        features: the model's input; its length counts against the budget of a batch.
        tokenize_us: duration of parsing and tokenisation, microseconds.
        embeds: whether the embedding of its text is needed.
        future: resolved when the model has run; cancelled if the caller has cancelled.
        queued_at: time of entry into the queue, seconds on the event loop's clock.
        probability: probability that the conversation continues, recalibrated to this deployment.
        model_log_odds: log-odds of the model's own probability, without recalibration.
        embedding: embedding of its text, little-endian fp16; None if it is not needed.
        reuse_group: group of its predicted return curve; 0: unknown, or not needed.
        queue_us, infer_us: time in the queue, and of its batch in the models, microseconds.
    """

    model: Model
    deadline: float
    conversation: pb.Conversation = field(default_factory=pb.Conversation)
    client: str = ""

    turn: WatchedTurn | None = field(default=None, init=False)
    has_text: bool = field(init=False)
    features: ModelInput = field(init=False)
    tokenize_us: int = field(init=False)

    embeds: bool = field(default=False, init=False)
    future: "asyncio.Future[None]" = field(init=False)
    queued_at: float = field(init=False)

    probability: float = field(init=False)
    model_log_odds: float = field(init=False)
    embedding: bytes | None = field(init=False)
    reuse_group: int = field(default=0, init=False)

    queue_us: int = field(init=False)
    infer_us: int = field(init=False)

    @property
    def tokens(self) -> int:
        """Number of tokens of the features, without padding."""
        return len(self.features.input_ids)
