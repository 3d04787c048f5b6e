"""`feduca watch`: the report's page, live, from a run directory's files; a list when pointed at a folder of runs."""

from feduca.report.dashboard.server import Dashboard, watch

__all__ = ["Dashboard", "watch"]
