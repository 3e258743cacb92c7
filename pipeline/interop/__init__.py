"""Conversion between datasets of dataprep, directories of JASPER, and single files.

JASPER is a dataset of pairs that the package RAG_supporters writes (see `jasper.names`).
"""
