"""The programs that the command line calls: logs, simulator, training, `lpc why`, the controller for LMCache."""
