"""What is special about chains: exact schedules and bounds, Griewank's and Rotor's strategies."""
