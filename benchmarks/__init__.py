"""What hand-over costs, next to what else does it. ``make bench`` runs all of it; see RESULTS.md."""
