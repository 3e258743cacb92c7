"""Classes that write the files of a dataset into a directory that is not yet visible."""
