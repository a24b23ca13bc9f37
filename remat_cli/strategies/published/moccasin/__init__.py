"""Retention intervals by constraint programming (Moccasin)."""
