"""One module per paper of the mission, the FedAvg family, and methods of our own."""
