"""Execution of units: worker processes, the work on a unit, and the files that it writes."""
