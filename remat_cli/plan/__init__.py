"""Plans: what a schedule does statement by statement, how it is derived, and the judge of it."""
