"""What the server checks before it believes a report."""
