"""Linen models, their loaders and tokenizers."""
