"""What a federated model is worth to one hospital: trained on there, and beside a model of the hospital's own."""
