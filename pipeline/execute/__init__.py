"""Processing of units, the parts into which a plan divides a build.

The modules hold the worker processes, the work on a unit, and the files of a finished unit.
"""
