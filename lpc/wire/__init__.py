"""Code that sidecar, plug-in, gateway and commands share: TLS, tokens, Redis, settings, logs, background tasks, the console."""
