"""Execution of units: worker processes, the work on one unit, the files that it writes."""
