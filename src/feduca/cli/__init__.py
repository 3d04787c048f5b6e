"""The command line. Imports nothing heavy until a command runs, so that `feduca --help` is instant."""
