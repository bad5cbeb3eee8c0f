"""One token of the gated delta rule with its memory read and written once."""
