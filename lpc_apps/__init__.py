"""The programs of this project, which its command line calls: logs, simulator, training, and others."""
