"""Methods of other papers, which our tables compare with; no hospital is asked to run them."""
