"""About the paper: its printed numbers, a verdict on each claim, and the pages, tables and figures written from results/."""
