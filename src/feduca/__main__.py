"""`python -m feduca` is the command line."""

from feduca.cli import main

main()
