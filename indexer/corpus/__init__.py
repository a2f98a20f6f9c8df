"""The corpus: files, folders or standard input are read into `Document`s, one at a time."""
