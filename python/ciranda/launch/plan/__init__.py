"""Which rank runs where, and what it finds in its environment. Pure but for what it looks up."""
