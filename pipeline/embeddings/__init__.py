"""`dataprep build --kind embeddings`: datasets of vectors, given in files or made by an encoder."""
