"""Speed and memory; nothing here trains to learn something (`studies` does)."""
