"""The official clients, old, current and Node: through the gateway they see what a direct connection shows."""
