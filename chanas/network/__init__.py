"""One fixed network: its PyTorch module, its weights folded and packed, and the images that it reads."""
