"""What runs at a hospital. Nothing here imports the server."""
