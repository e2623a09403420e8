"""The configuration file: its keys, what they may hold, and how faults in it are reported."""
