"""The offline story world."""
