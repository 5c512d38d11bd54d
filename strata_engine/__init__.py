"""The engine package shared by the command line, the server and the benches. Importing it imports nothing else."""

__version__ = "0.1.0"
