"""Executing units: worker processes, one unit's work, and the files that it writes."""
