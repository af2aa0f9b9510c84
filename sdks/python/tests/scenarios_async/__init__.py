"""The scenarios for the clients of asyncio; those of the blocking clients are generated from them."""
