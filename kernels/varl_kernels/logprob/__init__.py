"""Chunked log-probabilities of the output head, and their gradient."""
