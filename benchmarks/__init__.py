"""What is measured beside the tests. A package with a file of its own: opacus installs another one of this name."""
