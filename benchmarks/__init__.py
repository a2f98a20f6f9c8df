"""Side by side with peers: each module is one command that prints one table of ratios."""
