"""Readers of corpus files: text formats, Arrow and Parquet, NumPy arrays, compressed and remote streams."""
