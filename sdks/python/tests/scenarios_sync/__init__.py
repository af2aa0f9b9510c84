"""The scenarios for the blocking clients: written by scripts/generate-sync, but for seam.py."""
