"""Jobs of the sidecar without a model."""

import math
from typing import cast

from lpc.model.inference import Model
from lpc.v1 import predictor_pb2 as pb
from predictor_service.batching.job import Job


def unread_job(conversation: pb.Conversation, client: str = "") -> Job:
    """Return the job of a conversation that is not prepared for a model."""
    return Job(model=cast("Model", None), deadline=math.inf, conversation=conversation, client=client)
