"""MIP solvers behind one interface: a model, options and a deadline in; values, bound, status and log out."""
