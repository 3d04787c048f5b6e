"""Softmax regression on scikit-learn's digits; every client holds other classes more often."""
