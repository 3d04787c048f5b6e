"""A silo's half of a round: decide, train, estimate, report. Knows neither torch nor Flower."""
