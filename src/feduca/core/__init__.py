"""The round loop and what it is made of. Knows neither torch nor Flower."""
