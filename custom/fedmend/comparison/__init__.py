"""Tables, curves and paired differences of many runs."""
