"""What the loaderd client and daemon agree on: messages, batch layout, arenas, addresses, errors."""
