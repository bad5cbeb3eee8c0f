"""LM head, temperature, Gumbel noise, arg-max and log-probability at once."""
