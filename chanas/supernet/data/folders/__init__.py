"""Folders of images as people have them: images found, and which folders are parts, classes, or neither."""
