"""One fixed network: its PyTorch module, its weights folded and packed, the images that it reads."""
