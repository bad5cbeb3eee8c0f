"""Frozen language models: the protocol, strict replies, the scripted model."""
