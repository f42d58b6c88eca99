"""Networks, weights, losses, inference and local training, the same for every method."""
