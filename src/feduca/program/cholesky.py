"""Small positive semidefinite systems, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from feduca.program.layout import LOOP


@njit(forceinline=True, **LOOP)
def factor(M, L, keep):
    """Cholesky of a small positive semidefinite matrix, scaled to unit diagonal; a vanishing pivot freezes its direction."""
    n = M.shape[0]
    for j in range(n):
        keep[j] = 1.0 / np.sqrt(M[j, j]) if M[j, j] > 0 else 0.0
    for j in range(n):
        pivot = M[j, j] * keep[j] * keep[j]
        for m in range(j):
            pivot -= L[j, m] * L[j, m]
        if pivot > 1e-15:
            L[j, j] = np.sqrt(pivot)
            for i in range(j + 1, n):
                entry = M[i, j] * keep[i] * keep[j]
                for m in range(j):
                    entry -= L[i, m] * L[j, m]
                L[i, j] = entry / L[j, j]
        else:
            keep[j] = 0.0
            L[j, j] = 1.0
            for i in range(j + 1, n):
                L[i, j] = 0.0
            for m in range(j):
                L[j, m] = 0.0


@njit(forceinline=True, **LOOP)
def backsolve(L, keep, b, x):
    n = L.shape[0]
    for i in range(n):
        entry = b[i] * keep[i]
        for m in range(i):
            entry -= L[i, m] * x[m]
        x[i] = entry / L[i, i]
    for i in range(n - 1, -1, -1):
        entry = x[i]
        for m in range(i + 1, n):
            entry -= L[m, i] * x[m]
        x[i] = entry / L[i, i]
    for i in range(n):
        x[i] *= keep[i]
