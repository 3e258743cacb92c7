"""JASPER's directory of pairs."""
