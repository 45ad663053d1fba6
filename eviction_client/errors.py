"""Errors of the client, raised only to tools and at start-up; the serving path never sees one.

    ClientError
    ├── EngineUnsupported       an engine's version or configuration in which the plug-in cannot work
    └── StoreError              the shared store cannot be used
        ├── StoreUnreachable    nothing answers at the address in time
        ├── StoreAccessDenied   password missing or wrong, or the user may not run a command or touch our keys
        └── StoreUnsuitable     it answers, but is too old, read-only, full or otherwise unable to take scores

Messages say what was wrong and what to do. They contain no password and no text of a conversation.
"""

from lpc.errors import LpcError


class ClientError(LpcError):
    """Base of every error that an operator can cause."""


class EngineUnsupported(ClientError):
    """The plug-in does not work in this version or configuration of the engine."""


class StoreError(ClientError):
    """The shared store cannot be used."""


class StoreUnreachable(StoreError):
    """Nothing answers at the address in time."""


class StoreAccessDenied(StoreError):
    """The store refuses this user."""


class StoreUnsuitable(StoreError):
    """The store answers but cannot take scores."""
