"""feduca: federated learning that rational silos choose to stay in."""
