"""Topological orders other than the document's: found, ranked, and solved by any strategy."""
