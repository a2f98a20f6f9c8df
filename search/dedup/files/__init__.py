"""What is written: the dropped documents, and pairs for other thresholds; each says what it was made from."""
