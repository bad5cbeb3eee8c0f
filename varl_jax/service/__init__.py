"""The generation service: tasks, admission, repair, evolution, its store."""
