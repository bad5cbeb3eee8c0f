"""The prompts of all roles: text files and their strict loader."""
