"""Errors of the client, raised only to tools and at start-up; the serving path never sees one.

    ClientError
    ├── EngineUnsupported       an engine's version or configuration in which the plug-in cannot work
    └── StoreError              the shared store cannot be used

Messages say what was wrong and what to do. They contain no password and no text of a conversation.
"""

from lpc.errors import LpcError


class ClientError(LpcError):
    """Base of every error that an operator can cause."""


class EngineUnsupported(ClientError):
    """The plug-in does not work in this version or configuration of the engine."""


class StoreError(ClientError):
    """The shared store cannot be used."""
