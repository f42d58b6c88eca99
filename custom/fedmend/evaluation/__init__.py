"""How good a trained model is on data that it was not trained on: at one site, with everything at hand, or as counts at
the sites of a federation."""
