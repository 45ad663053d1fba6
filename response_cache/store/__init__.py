"""Answers, vectors and evidence in Redis."""
