"""Group-relative policy optimization: advantages, loss, batches, update.

Letters in shapes: B rows (rollouts), L tokens of prompt and response, R tokens
of the response alone, V vocabulary, D width, M micro-batches.
"""
