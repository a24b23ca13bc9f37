"""Methods for chains: exact schedules and bounds, Griewank's and Rotor's strategies."""
