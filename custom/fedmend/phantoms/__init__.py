"""Synthetic images in the layouts of public data sets, and the federations of sites that are made of them."""

LEAST_PIXELS, LEAST_DEPTH = 32, 12  # edge length of a picture, and slices of a volume
