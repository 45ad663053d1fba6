"""The programs of this project, which its command line calls: logs, simulator, training, `lpc why`, the controller for LMCache."""
