"""What runs at the server. Nothing here imports a site."""
