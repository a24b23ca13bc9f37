"""Plans inside Inductor: joint graphs are divided by plan, and Inductor compiles both parts."""
