"""Rubrics: their score, their rules and their shape; pure logic."""
