"""Speed and memory; nothing here trains to learn something (`studies` does)."""

from attention.errors import moved

moved({f"benchmarks.{name}": f"studies.{name}" for name in ("digits", "precision", "replication", "translations")})
