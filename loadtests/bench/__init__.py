"""The bench: what the gateway costs beside a direct connection, nginx and sglang-router."""
