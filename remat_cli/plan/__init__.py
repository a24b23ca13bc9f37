"""Plans: statements derived from a schedule, and the independent replay that checks them."""
