"""Conversion between dataprep datasets, JASPER directories and single files.

JASPER is the directory layout in which the package RAG_supporters writes datasets of pairs (see
`jasper.names`).
"""
