"""From vectors and words to ranked documents."""
