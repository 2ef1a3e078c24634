"""The explorer: a page that shows what the heads of trained models attend to."""
