"""Repair of prompts: `lpc.requests.repair`."""
