"""Pictures of finished runs; `python -m analysis.pictures` draws them."""
