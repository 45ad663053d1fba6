"""Turns that the sidecars of one fleet share through Redis, so that a return counts on whichever sidecar it arrives.

Engines send each request to the least loaded sidecar, and a conversation's next request may come from another engine, so
routing cannot keep conversations together. Every turn therefore leaves a record for one horizon, under the name by which the
next turn finds it (`predictor_service.labels.names`): keyed hashes and numbers, never text. The sidecar that gets the next turn
takes the record, continues its history, and notifies the sidecar that left it.

Without Redis, or while it is unreachable, each sidecar uses its own turns only; no answer waits or fails because of Redis.
"""
