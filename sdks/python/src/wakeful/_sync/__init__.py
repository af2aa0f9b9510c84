"""The blocking clients: written by scripts/generate-sync, but for seam.py, websocket.py and listener.py."""
