"""Studies: tables of runs, from a recipe with axes to a summary with one entry per cell."""
