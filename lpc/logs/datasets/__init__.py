"""Loaders of conversation datasets."""
