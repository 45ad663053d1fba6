"""The programs of this project: simulator, training, gateway, and the controller for LMCache."""
