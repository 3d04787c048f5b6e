"""The participation program through its peers: Clarabel called directly, and CVXPY with parameters.

Both get the program in the units that suit them best (X = N R, slacks times kappa) and everything that does not change from
round to round prepared in advance; what is timed is what a server would pay each round.
"""

from __future__ import annotations

import numpy as np


def scale(zeta, n):
    """One over the median change of utility when a weight moves by 1/N."""
    return 1.0 / np.median(np.abs(zeta[:, 1]) / n + 2 * zeta[:, 0] / n**2)


class ClarabelDirect:
    """Second-order cones, one per client; the sparsity pattern is prepared, the solver object built anew for each solve.

    Client k: `sum_i A_k s_i x_i^2 <= q_k`, `q_k = T_k + B_k s.x - G_k`, as `||(2 sqrt(A s) x, 1 - q)|| <= 1 + q`.
    """

    def __init__(self, n: int, n_s: int):
        import clarabel
        import scipy.sparse as sparse

        self.clarabel, self.sparse = clarabel, sparse
        self.n, self.n_s = n, n_s
        k, cells = np.arange(n), np.arange(n * n_s)  # cell (i, k) is variable i * n + k; slack k is n * n_s + k
        self.sums = n_s - 1 if n_s > 1 else 1  # with columns one row sum follows from the others
        cone = n_s + 2
        first = self.sums + (n if n_s > 1 else 0)
        self.head = first + n * n_s + k * cone
        entries = [(cells[: self.sums * n] // n, cells[: self.sums * n])]  # rows
        if n_s > 1:
            entries.append((self.sums + cells % n, cells))  # columns
        entries.append((first + cells, cells))  # signs
        entries.append((self.head[cells % n], cells))  # 1 + q
        entries.append((self.head, n * n_s + k))
        entries.append((self.head[cells % n] + 1 + cells // n, cells))  # 2 sqrt(A s) x
        entries.append((self.head[cells % n] + n_s + 1, cells))  # 1 - q
        entries.append((self.head + n_s + 1, n * n_s + k))
        rows, columns = (np.concatenate(part) for part in zip(*entries))
        self.height, self.width = int(first + n * n_s + n * cone), n * n_s + n
        order = sparse.csc_matrix((np.arange(1.0, len(rows) + 1), (rows, columns)), shape=(self.height, self.width))
        self.order, self.indices, self.indptr = order.data.astype(int) - 1, order.indices, order.indptr
        self.P = sparse.diags(np.r_[np.zeros(n * n_s), np.ones(n)], format="csc")
        cones = [clarabel.ZeroConeT(first), clarabel.NonnegativeConeT(n * n_s)]
        self.cones = cones + [clarabel.SecondOrderConeT(cone)] * n
        self.settings = clarabel.DefaultSettings()
        self.settings.verbose = False

    def solve(self, zeta, gamma, s):
        """The optimal value, `R`, and Clarabel's status."""
        n, n_s = self.n, self.n_s
        kappa = scale(zeta, n)
        A, B, G = kappa * zeta[:, 0] / n**2, kappa * zeta[:, 1] / n, kappa * (gamma - zeta[:, 2])
        slope = np.outer(s, B).ravel()
        values = [np.ones(self.sums * n), *([np.ones(n * n_s)] if n_s > 1 else []), -np.ones(n * n_s)]
        values += [-slope, -np.ones(n), -2 * np.sqrt(np.outer(s, A)).ravel(), slope, np.ones(n)]
        matrix = self.sparse.csc_matrix(
            (np.concatenate(values)[self.order], self.indices, self.indptr), shape=(self.height, self.width)
        )
        right = np.zeros(self.height)
        right[: self.sums] = n
        if n_s > 1:
            right[self.sums : self.sums + n] = n_s
        right[self.head], right[self.head + n_s + 1] = 1 - G, 1 + G
        zeros = np.zeros(self.width)
        solver = self.clarabel.DefaultSolver(self.P, zeros, matrix, right, self.cones, self.settings)
        solution = solver.solve()
        x = np.asarray(solution.x)
        T = x[n * n_s :] / kappa
        return float(T @ T) / 2, x[: n * n_s].reshape(n_s, n) / n, str(solution.status)


class CvxpyParametrised:
    """A disciplined parametrised program: compiled by the first solve, which is not timed."""

    def __init__(self, n: int, n_s: int):
        import cvxpy as cp

        self.n, self.n_s = n, n_s
        self.square = cp.Parameter((n_s, n), nonneg=True)
        self.slope = cp.Parameter((n_s, n))
        self.demand = cp.Parameter(n)
        self.X, self.T = cp.Variable((n_s, n), nonneg=True), cp.Variable(n, nonneg=True)
        bent = cp.sum(cp.multiply(self.square, cp.square(self.X)), axis=0)
        constraints = [cp.sum(self.X, axis=1) == n]
        if n_s > 1:
            constraints.append(cp.sum(self.X, axis=0) == n_s)
        constraints.append(bent - cp.sum(cp.multiply(self.slope, self.X), axis=0) + self.demand <= self.T)
        self.problem = cp.Problem(cp.Minimize(cp.sum_squares(self.T) / 2), constraints)

    def solve(self, zeta, gamma, s):
        n = self.n
        kappa = scale(zeta, n)
        self.square.value = np.outer(s, kappa * zeta[:, 0] / n**2)
        self.slope.value = np.outer(s, kappa * zeta[:, 1] / n)
        self.demand.value = kappa * (gamma - zeta[:, 2])
        self.problem.solve(solver="CLARABEL")
        return float(self.problem.value) / kappa**2
