"""What a run writes into its folder, and the readers of it."""
