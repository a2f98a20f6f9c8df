"""The index directory: what its files are called, how they are written so that nothing half-written is ever
visible, and how they are read so that nothing damaged is ever used."""
