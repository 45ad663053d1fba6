"""The programs of this project: command line, simulator, training, gateway, and the controller for LMCache."""
