"""Every figure that the project claims, one command each; the models they use are in `models`."""
