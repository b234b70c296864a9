"""Folders of images as people have them: which files are images, and which folders are parts, classes, or neither."""
