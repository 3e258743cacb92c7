"""Import and export of datasets of pairs in the directory layout of JASPER."""
