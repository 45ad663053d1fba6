"""Errors of the client. They are raised to tools and at start-up, never on the serving path.

    ClientError
    ├── EngineUnsupported       the plug-in does not work in this version or configuration of the engine
    └── StoreError              the shared store cannot be used

Messages give the cause and the remedy. They contain no password and no text of a conversation.
"""

from lpc.errors import LpcError


class ClientError(LpcError):
    """Base of every error that an operator can cause."""


class EngineUnsupported(ClientError):
    """The plug-in does not work in this version or configuration of the engine."""


class StoreError(ClientError):
    """The shared store cannot be used."""
