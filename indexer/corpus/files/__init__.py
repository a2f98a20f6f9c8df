"""Files as documents: their text, title and structure."""
