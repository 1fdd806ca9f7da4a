"""Scripts that start several engines."""
