"""One module per paper that FedMend set out to implement, the FedAvg family, and methods of our own."""
