"""Scheduled functions compiled to libraries."""
