"""Stands before hypothesis on the path of a daemon that a test starts: where the product is installed there is none.

kio imports it where it is found, for strategies that no daemon draws from: a tenth of the daemon's start.
"""

raise ModuleNotFoundError("No module named 'hypothesis'", name="hypothesis")
