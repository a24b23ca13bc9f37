"""MIP solvers behind one contract: a model or a file, options and a deadline in; values, bound, status and log out."""
