"""Static word vectors on word-level data sets: `data` reads the sets, `vectors` the vectors, `evaluation` measures."""
