"""Turns plans into functions that run them, with random inputs and a comparison of graphs."""
