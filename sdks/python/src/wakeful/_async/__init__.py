"""The clients for asyncio. The blocking ones beside it are generated from these files by scripts/generate-sync."""
